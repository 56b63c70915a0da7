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


GAVE_UP = (
    "torch.distributed.DistBackendError: NCCL error in: /src/ProcessGroupNCCL.cpp:3690, {kind} (run with "
    "NCCL_DEBUG=WARN for details), NCCL version 2.27.3\n{name}\nLast error:\n{said}"
)


@pytest.mark.parametrize(
    ("said", "kind", "cause", "retry"),
    [
        ("no device found matching =ens7, verify NCCL_OOB_NET_IFNAME", "cause", "no_socket_interface", "no"),
        ("Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>", "cause", "nccl_address", "no"),
        ("Net : error encountered when getting address info : Try again", "cause", "nccl_address", "no"),
        (
            "Mismatched NCCL git versions detected: rank 0 fingerprint 0x1",
            "cause",
            "nccl_version_mismatch",
            "no",
        ),
        ("Bootstrap Root : localId 9 is out of range", "cause", "nccl_rank_count", "no"),
        ("Multiple Ranks are using the same GPU/Partition.", "cause", "duplicate_gpu", "no"),
        ("Rank 9 has 4 local Net devices (max 8).", "cause", "nccl_topology", "no"),
        ("P2P is disabled between NVLINK connected GPUs 3 and 5.", "cause", "nvlink", "another_node"),
        ("Trying to send to self without a matching recv", "cause", "nccl_argument", "no"),
        (
            "Broadcast : sendbuff allocated on device 0 mismatchs with NCCL device 1",
            "cause",
            "nccl_argument",
            "no",
        ),
        ("No transport found for rank 9[d8000] -> rank 8[1b000]", "cause", "nccl_no_transport", "no"),
        ("Failed to malloc 4194304 bytes", "cause", "host_memory", "no"),
        ("ibv_post_send() failed with error Cannot allocate memory", "cause", "ib_resources", None),
        ("XML Topology has wrong version 2, 1 needed", "suspect", "nccl_machine", None),
        (
            "NCCL_NVLS_ENABLE has been set to 1 and communicator has multiple ranks using the same device",
            "suspect",
            "nccl_warning",
            None,
        ),
        (
            "cuMem host allocations do not appear to be working; falling back to a file",
            "consequence",
            "nccl_invalid_usage",
            None,
        ),
    ],
)
def test_what_nccl_warns_of_before_it_gives_up(
    explain_text: Explain, said: str, kind: str, cause: str, retry: str | None
) -> None:
    file = "transport/nvls.cc:70" if "NVLS" in said else "init.cc:901"
    raised = GAVE_UP.format(kind="invalid usage", name="ncclInvalidUsage: This is wrong usage.", said=said)
    verdict = explain_text(f"\ngpu-4:4071:4132 [1] {file} NCCL WARN {said}\n" + uncaught(raised, "[rank9]: "))
    assert (verdict.kind, verdict.cause, verdict.retry) == (kind, cause, retry)


def test_completion_of_a_peer_that_ended_is_what_followed(explain_text: Explain) -> None:
    completion = (
        "gpu-4:4071:4132 [1] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer "
        "10.3.0.9<47210> with status={} opcode=IBV_WC_RECV(128) reqSize=0 vendor err 249\n"
    )
    for status, cause in (
        ("IBV_WC_WR_FLUSH_ERR(5)", "connection_lost"),
        ("IBV_WC_RETRY_EXC_ERR(12)", "ib_retry_exceeded"),
    ):
        verdict = explain_text(completion.format(status))
        assert (verdict.cause, verdict.details["peer"].partition("<")[0]) == (cause, "10.3.0.9")


def test_report_of_a_desync_names_the_rank_that_did_not_join(explain_text: Explain) -> None:
    caught = (
        "[rank5]:[E1126 12:00:05.12 ProcessGroupNCCL.cpp:650] [Rank 5] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=102, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for "
        "600012 milliseconds before timing out.\n"
        "\t - [2] Timeout at collective: ALLREDUCE, #102\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "\t   - [{}] finished collective #101, but didn't join collective #102 (count from 1)\n"
    )
    assert explain_text(caught.format("2")).where.rank == 2
    verdict = explain_text(caught.format("2, 7"))
    assert (verdict.where.rank, verdict.details["missing ranks"]) == (5, "2, 7")


def test_process_that_hangs_in_the_kernel_is_why_torchrun_killed_it(explain_text: Explain) -> None:
    verdict = explain_text(
        "E1126 12:00:09.114000 21 local_elastic_agent.py:554] [default] Worker pid=37 stuck in "
        "uninterruptible sleep (D-state) for 61.0s (>= 60.0s); marking worker group UNHEALTHY.\n"
        "E1126 12:00:19.114000 21 torch/distributed/elastic/api.py:882] failed (exitcode: -9) "
        "local_rank: 1 (pid: 37) of binary: /env/bin/python\n"
    )
    assert (verdict.cause, verdict.retry) == ("stuck_in_kernel", "another_node")


def test_end_of_a_pcie_port_is_no_error_of_a_gpus_memory(explain_text: Explain) -> None:
    verdict = explain_text(
        "[9912.1] pcieport 0000:40:01.1: DPC: containment event, status:0x1f01 source:0x0000\n"
        "[9912.2] pcieport 0000:40:01.1: DPC: unmasked uncorrectable error detected\n"
        + uncaught("RuntimeError: CUDA error: unknown error", "[rank2]: ")
    )
    assert verdict.cause == "pcie"


@pytest.mark.parametrize(
    "said",
    [
        "1 uncorrectable hardware errors detected in umc block",
        "RAS poison consumption, unmap queue flow succeeded",
    ],
)
def test_memory_of_an_amd_gpu_that_cannot_be_corrected(explain_text: Explain, said: str) -> None:
    verdict = explain_text(
        f"[9912.1] amdgpu 0000:c1:00.0: amdgpu: {said}\n" + uncaught("RuntimeError: HIP error: unknown error")
    )
    assert (verdict.cause, verdict.where.gpu, verdict.retry) == ("ecc", "0000:c1:00", "another_node")


def test_port_that_torch_may_not_or_cannot_listen_on_is_not_taken(explain_text: Explain) -> None:
    failed = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, code: -99, name: EADDRNOTAVAIL, message: not available"
    )
    assert explain_text(uncaught(failed, "[rank0]: ")).cause == "address_not_here"


@pytest.mark.parametrize(
    ("error", "cause"),
    [("wait timeout after 600000ms", "nccl_id_timeout"), ("Connection reset by peer", "store_lost")],
)
def test_why_a_rank_did_not_get_the_id_of_nccl(explain_text: Explain, error: str, cause: str) -> None:
    asked = (
        "[5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store"
    )
    raised = f"torch.distributed.DistBackendError: {asked} by key '0', but store->get('0') got error: {error}"
    verdict = explain_text(uncaught(raised, "[rank5]: "))
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("consequence", cause, 5)


BUSY = "hfi_userinit_internal: Warning: assign_context command failed: Device or resource busy\n"


def test_host_in_front_of_what_omni_path_says(explain_text: Explain) -> None:
    at = "gn-2.lan.4711"
    verdict = explain_text(f"{at}PSM2 can't open hfi unit: -1 (err=23)\n{at}{BUSY}")
    assert (verdict.cause, verdict.where.host) == ("mpi_network", "gn-2.lan")
    assert "PSM2_SHAREDCONTEXTS" in verdict.fix


def test_program_of_mpi_that_no_launcher_started(explain_text: Explain) -> None:
    stack = "MPID_Init(1139)..............:\nMPIDI_OFI_mpi_init_hook(1678):\nMPIDU_bc_table_create(309)...:\n"
    verdict = explain_text(
        "Abort(3712655) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Other MPI error, "
        f"error stack:\nMPIR_Init_thread(138)........:\n{stack}"
    )
    assert (verdict.cause, verdict.where.rank) == ("mpi_no_launcher", 0)


def test_no_transport_of_ucx_leads_to_another_node(explain_text: Explain) -> None:
    verdict = explain_text(
        "[1650121445.321789] [cpn2:2427:0]   select.c:514  UCX  ERROR   no active messages transport to "
        "<no debug data>: posix/memory - Destination is unreachable, cma/memory - no am bcopy\n"
    )
    assert (verdict.cause, verdict.where.host) == ("ucx_no_transport", "cpn2")


def test_rank_whose_binding_does_not_suit_the_card_s_policy(explain_text: Explain) -> None:
    verdict = explain_text(
        "MPICH ERROR: Unable to use a NIC_POLICY of 'NUMA'. Rank 4 is not confined to a single NUMA node.\n"
        "MPICH ERROR [Rank 0] [job id 28.0] [Fri Dec 13 13:41:36 2024] [gn5] - Abort(2665871) "
        "(rank 0 in comm 0): Fatal error in PMPI_Init_thread: Other MPI error, error stack:\n"
    )
    assert (verdict.cause, verdict.where.rank) == ("mpi_nic_policy", 4)


def completion(host: str, peer: str, status: int) -> str:
    return (
        f"{host}:310:411 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        f"{peer}<53249> with status={status} opcode=0 len=0 vendor err 249 (Recv)\n"
    )


def test_a_flushed_work_request_was_of_the_peer_that_went_away(explain_text: Explain) -> None:
    verdict = explain_text(completion("gn1", "10.3.0.9", 5))
    assert (verdict.cause, str(verdict.where)) == ("connection_lost", "host 10.3.0.9")
    assert "the connection was lost by host gn1, GPU 3" in verdict.notes


def test_a_peer_that_several_hosts_do_not_reach_is_where_it_happened(explain_text: Explain) -> None:
    both = completion("gn1", "10.3.0.9", 12) + completion("gn2", "10.3.0.9", 12)
    verdict = explain_text(both)
    assert (verdict.cause, str(verdict.where)) == ("ib_retry_exceeded", "host 10.3.0.9")
    assert "the connection was lost by hosts gn1, gn2, GPU 3" in verdict.notes


@pytest.mark.parametrize(
    "further", ["", completion("gn1", "10.3.0.7", 12), completion("gn9", "10.3.0.1", 12)]
)
def test_which_end_of_a_connection_is_at_fault_is_open_where_not_all_name_the_same(
    explain_text: Explain, further: str
) -> None:
    verdict = explain_text(completion("gn1", "10.3.0.9", 12) + further)
    assert verdict.where.host == "gn1"


@pytest.mark.parametrize(
    ("warning", "kind", "cause"),
    [
        ("UDS: Sending data over socket /tmp/nccl-socket-3-9b1c failed : Connection refused (111)",
         "suspect", "nccl_local_socket"),
        ("UDS: Receiving data over socket failed : 104", "suspect", "nccl_local_socket"),
        ("No transport found !", "cause", "nccl_no_transport"),
        ("Error: corrupted comm object detected", "cause", "nccl_argument"),
        ("AllReduce : reduction operation 7 unknown to this communicator", "cause", "nccl_argument"),
        ("Failed to CUDA host alloc 33554432 bytes", "suspect", "pinned_memory"),
        ("Failed to CUDA calloc async 33554432 bytes", "suspect", "nccl_gpu_memory"),
        ("NET/IB : mlx5_0:1 async fatal event: local catastrophic error", "cause", "ib_device_event"),
        ("ncclSocketReady: unexpected socket state 8", "suspect", "nccl_warning"),
    ],
)  # fmt: skip
def test_what_nccl_warns_of_answers_before_the_error_that_it_then_returns(
    explain_text: Explain, warning: str, kind: str, cause: str
) -> None:
    verdict = explain_text(
        f"gn07:4007:4300 [1] misc/some.cc:123 NCCL WARN {warning}\n"
        "gn07:4007:4300 [1] NCCL INFO transport.cc:34 -> 3\n"
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, internal "
        "error - please report this issue to the NCCL developers, NCCL version 2.21.5\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.host, verdict.where.gpu) == (kind, cause, "gn07", "1")


def test_a_mismatch_that_nccl_only_suspects_is_likely_at_the_rank_that_it_names(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "gn07:4007:4300 [1] init.cc:388 NCCL WARN Your program may be hanging, this may be caused by a "
        "collective mismatch around rank 3. Please check your collective calls at and around this rank.\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("suspect", "nccl_mismatch_suspected", 3)
