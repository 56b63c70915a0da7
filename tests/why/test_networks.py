"""What NCCL says of the network interfaces that it takes, and what the driver says of links between GPUs."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught

USES = "gpu-4:31975:31975 [0] NCCL INFO "
VIRTUAL = (
    f"{USES}NET/Socket : Using [0]eth0:10.3.0.7<0> [1]veth5ab3c1d:fe80::48:1dff:fe5c:14e7%veth5ab3c1d<0>\n"
)
CLOSED = "[0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer 10.3.0.9<36138>\n"
NOT_REACHED = (
    "gpu-4:31975:32010 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: "
    "Connect to 10.3.0.9<45763> failed : Connection timed out\n"
)


def test_interface_that_nccl_cannot_listen_on(explain_text: Explain) -> None:
    verdict = explain_text(
        f"{USES}Bootstrap : Using ib1:fe80::ba59:9f03:fc:765c%ib1<0>\n"
        "gpu-4:31975:31975 [0] misc/socket.cc:379 NCCL WARN "
        "Call to bind failed : Cannot assign requested address\n"
    )
    assert (verdict.cause, verdict.where.host) == ("nccl_listen", "gpu-4")
    assert "NCCL_SOCKET_IFNAME" in verdict.fix


def test_virtual_interface_is_why_a_peer_was_not_reached(explain_text: Explain) -> None:
    verdict = explain_text(VIRTUAL + NOT_REACHED)
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("suspect", "nccl_interface", "gpu-4")
    assert verdict.details["interface"] == "veth5ab3c1d"


@pytest.mark.parametrize(
    ("interface", "cause"),
    [
        ("docker0:172.17.0.1", "nccl_interface"),
        ("eno1:169.254.3.1", "nccl_interface"),
        ("eno1:10.3.0.7", "nccl_connect"),
    ],
)
def test_interfaces_that_lead_nowhere(explain_text: Explain, interface: str, cause: str) -> None:
    assert explain_text(f"{USES}Bootstrap : Using {interface}<0>\n{NOT_REACHED}").cause == cause


def test_virtual_interface_does_not_explain_a_peer_that_was_reached(explain_text: Explain) -> None:
    assert explain_text(f"{VIRTUAL}gpu-4:31975:32010 {CLOSED}").cause == "connection_lost"


def test_connection_that_an_old_nccl_did_not_get(explain_text: Explain) -> None:
    old = "gpu-4:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out\n"
    assert explain_text(old).cause == "nccl_connect"


def test_number_before_nccls_words_is_a_gpus(explain_text: Explain) -> None:
    verdict = explain_text(CLOSED)
    assert (verdict.cause, verdict.where.rank) == ("connection_lost", None)


def test_host_before_the_words_of_nccls_tests(explain_text: Explain) -> None:
    verdict = explain_text(
        "gpu-4: Test CUDA failure common.cu:941 'invalid device ordinal'\n"
        " .. gpu-4 pid 8863: Test failure common.cu:891\n"
    )
    assert (verdict.cause, verdict.where.host) == ("invalid_device", "gpu-4")


def test_segment_that_cuda_cannot_register_is_a_matter_of_shared_memory(explain_text: Explain) -> None:
    verdict = explain_text(
        "gpu-4:7:9 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n\n"
        "gpu-4:7:9 [1] misc/shmutils.cc:114 NCCL WARN "
        "Error while creating shared memory segment /dev/shm/nccl-Tq2 (size 9637888)\n"
    )
    assert verdict.cause == "shared_memory"


def test_fault_of_a_switch_stands_behind_those_of_its_links(explain_text: Explain) -> None:
    verdict = explain_text(
        "[1234.567890] nvidia-nvswitch2: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 32 LTSSM Fault Up\n"
        "[1234.567990] NVRM: Xid (PCI:0000:4e:00): 74, pid=77, NVLink: fatal error detected on link 6\n"
    )
    assert (verdict.cause, verdict.details["sxid"]) == ("nvswitch", "20034")
    assert "SXid 20034" in verdict.fix


def test_errors_of_a_link_that_are_not_fatal_only_make_a_cause_likely(explain_text: Explain) -> None:
    nonfatal = "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)\n"
    verdict = explain_text(nonfatal)
    assert (verdict.kind, verdict.cause, verdict.where.gpu) == ("suspect", "nvlink_nonfatal", "0018:01:00")


def test_gloo_s_wait_for_other_ranks_is_told_by_the_place_where_it_was_raised(explain_text: Explain) -> None:
    waited = uncaught("RuntimeError: Wait timeout")
    assert explain_text(waited).cause == "python_exception"
    place = "distributed_c10d.py", "_new_process_group_helper"
    assert (
        explain_text(waited.replace("module.py", place[0]).replace("_call_impl", place[1])).cause
        == "store_timeout"
    )


ABORTED = "[rank1]:[E ProcessGroupNCCL.cpp:577] [Rank 1] Some NCCL operations have failed or timed out.\n"


@pytest.mark.parametrize(
    "lost",
    [
        "socketProgress: Connection closed by remote peer gn7.cluster<45074>",
        "Net : Connection closed by remote peer gn7.cluster<45074>",
        "socketProgressOpt: Call to recv from gn7.cluster<45074> failed : Connection reset by peer",
    ],
)
def test_peer_that_closed_a_connection_is_the_place(explain_text: Explain, lost: str) -> None:
    said = f"gn2:2985:2994 [0] misc/socket.cc:50 NCCL WARN {lost}\n"
    for log in (
        said,
        said + ABORTED,
        said + "gn2:2985:2994 [0] NCCL INFO misc/socket.cc:50 -> 6\n" + ABORTED,
    ):
        verdict = explain_text(log)
        assert (verdict.cause, str(verdict.where)) == ("connection_lost", "host gn7.cluster")
        assert verdict.details["peer"] == "gn7.cluster<45074>"
        assert "the connection was lost by host gn2" in verdict.notes[0]
    # One that had lost a connection itself only followed, and a name of the own host tells nothing.
    first = "gn7:51:52 [0] NCCL WARN NET/IB : Got completion from peer 10.3.0.4<9> with error 12\n"
    assert explain_text(first + said).where.host != "gn7.cluster"
    assert explain_text(said.replace("gn7.cluster<", "127.0.0.1<")).where.host == "gn2"


def test_change_of_a_gid_table_is_told_only_before_a_connection_that_got_no_answer(
    explain_text: Explain,
) -> None:
    changed = "gn7:815:864 [0] NCCL WARN NET/IB : mlx5_2:1 Got async event : GID table change\n"
    lost = "gn7:815:870 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<35163> with error 12\n"
    verdict = explain_text(changed + lost)
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("cause", "ib_gid_change", "gn7")
    assert explain_text(lost + changed).cause == "ib_retry_exceeded"
    assert explain_text(changed + "step 4 loss 0.3\n" * 20).kind == "nothing"


def test_place_of_an_infiniband_error_though_someone_hid_the_process_ids(explain_text: Explain) -> None:
    said = "ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, "
    said += "on dev mlx5_3:1, curr state INIT, next state RTR, local GID ::ffff:10.0.0.1, "
    said += "remote GID ::ffff:10.0.1.7\n"
    for head in ("[2026-03-13 22:26:02] gpu-1.example.com:XXXXX [5] ", "gpu-1.example.com:<pid>:<tid> [5] "):
        verdict = explain_text(head + said)
        assert (verdict.cause, verdict.where.host, verdict.where.gpu) == (
            "ib_modify_qp",
            "gpu-1.example.com",
            "5",
        )
        assert verdict.details == {"device": "mlx5_3:1", "peer": "::ffff:10.0.1.7"}
    only_one = explain_text("gpu-1:77:99 [0] " + said)  # each process may see a single GPU, which then is 0
    assert (only_one.where.host, only_one.where.gpu) == ("gpu-1", None)


def test_rank_whose_address_gloo_waited_for_is_the_place(explain_text: Explain) -> None:
    waited = "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/{}"
    verdict = explain_text("".join(uncaught(waited.format(5), f"[rank{rank}]: ") for rank in (0, 3)))
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("consequence", "gloo_absent", 5)


def test_rank_that_alone_reports_no_timeout_of_gloo_is_named(explain_text: Explain) -> None:
    waited = (
        "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:78] "
        "Timed out waiting 1800000ms for recv operation to complete"
    )
    log = "".join(uncaught(waited, f"[rank{rank}]: ") for rank in (0, 1, 3))
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.rank) == ("gloo_timeout", 0)
    assert "rank 2 reported no timeout: look there first" in verdict.notes
    verdict = explain_text("WORLD_SIZE=4\n" + log)
    assert (verdict.cause, verdict.where.rank) == ("gloo_timeout", 2)
