"""A rank's host stands where the job began, and the failure names the rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.events import as_json, beside, event, in_text
from platform_launch.why.explaining import explain_paths
from tests.why.conftest import Explain, progress, uncaught

_NAN = "ValueError: loss is nan"
_OF_RANK_5 = uncaught(_NAN, "[rank5]: ")


@pytest.mark.parametrize(
    "told",
    [
        "gn-8:4007:4300 [1] NCCL INFO ncclCommInitRank comm 0x55d0 rank 5 nranks 8 cudaDev 1 - Init COMPLETE",
        ("gn-8: [2026-03-04 10:11:12,345] [INFO] [launch.py:164:main] global_rank_mapping=defaultdict("
        "<class 'list'>, {'gn-7': [0, 1, 2, 3], 'gn-8': [4, 5, 6, 7]})"),
        ("W0304 10:11:12.345000 4007 TCPStore.cpp:106] [rank5]: no news\n"
        "[rank5]:[W304 10:11:12.345678901 socket.cpp:460] [c10d] waitForInput: poll for socket "
        "SocketImpl(fd=62, addr=[gn-8]:40310, remote=[gn-7]:29500) returned 0, likely a timeout"),
        (" Data for node: gn-8\tNum slots: 4\tMax slots: 0\tNum procs: 4\n"
        " \tProcess OMPI jobid: [4711,1] App: 0 Process rank: 5 Bound: N/A"),
        "[gn-8:04007] MCW rank 5 bound to socket 0[core 1[hwt 0]]: [./B/./.][./././.]",
        "[0] MPI startup(): Rank Pid Node name Pin cpu\n[0] MPI startup(): 5       4007     gn-8       {1,9}",
        "[0] rank=5 local_rank=1 world_size=8 hostname=gn-8 device=cuda:1",
        "Host: gn-8, rank: 5/8, local rank: 1",
        "hello from rank 5 of 8 on host gn-8",
        "Hello from rank 5, thread 0, on gn-8. (core affinity = 8-15,72-79)",
        "SLURM_JOB_NODELIST=gn-[7-8]\nSLURM_NTASKS_PER_NODE=4\nSLURM_NTASKS=8\nWORLD_SIZE=8",
        "+ mpirun -np 8 -H gn-7:4,gn-8:4 -x NCCL_DEBUG=INFO python train.py",
        ("The node 'gn-8_4007_0' has joined round 0 of the rendezvous 'a1' as rank 1 in a world of size 2.\n"
        "[default] Rendezvous complete for workers. Result:\n  restart_count=0\n  master_addr=gn-7\n"
        "  master_port=40001\n  group_rank=1\n  group_world_size=2\n  local_ranks=[0, 1, 2, 3]\n"
        "  role_ranks=[4, 5, 6, 7]\n  role_world_sizes=[8, 8, 8, 8]\n  global_ranks=[4, 5, 6, 7]"),
    ],
)  # fmt: skip
def test_host_of_a_rank_is_taken_from_what_the_job_said_at_its_beginning(
    told: str, explain_text: Explain
) -> None:
    verdict = explain_text(f"{told}\n{progress(600)}{_OF_RANK_5}")
    assert str(verdict.where) == "host gn-8, rank 5"


def test_process_that_ray_numbers_is_a_rank_on_a_host(explain_text: Explain) -> None:
    started = (
        "(Trainer pid=310) Started distributed worker processes: \n"
        "(Trainer pid=310) - (node_id=5f0c, ip=10.8.0.7, pid=388) world_rank=0, local_rank=0, node_rank=0\n"
        "(Trainer pid=310) - (node_id=77aa, ip=10.8.0.8, pid=4007) world_rank=5, local_rank=1, node_rank=1\n"
    )
    elsewhere = explain_text(started + uncaught(_NAN, "(RayTrainWorker pid=4007, ip=10.8.0.8) "))
    assert str(elsewhere.where) == "host 10.8.0.8, rank 5"
    of_head = explain_text(started + uncaught(_NAN, "(RayTrainWorker pid=388) "))
    assert str(of_head.where) == "host 10.8.0.7, rank 0"


def test_rank_of_a_process_that_nccl_names_by_its_host_and_id(explain_text: Explain) -> None:
    verdict = explain_text(
        "gn-7:388:411 [3] NCCL INFO comm 0x7f53 rank 3 nranks 8 cudaDev 3 - Init COMPLETE\n"
        "gn-8:4007:4300 [1] NCCL INFO comm 0x7f51 rank 5 nranks 8 cudaDev 1 - Init COMPLETE\n"
        "gn-8:4007:4300 [1] NCCL INFO comm 0x8a11 rank 1 nranks 4 cudaDev 1 - Init COMPLETE\n"
        "gn-8:4007:4388 [1] transport/net_ib.cc:881 NCCL WARN Got completion with error 12, opcode 1\n"
    )
    assert str(verdict.where) == "host gn-8, rank 5, GPU 1"


def test_two_attempts_that_ran_elsewhere_tell_no_host(explain_text: Explain) -> None:
    moved = "rank 5 of 8 on host gn-8\nrank 5 of 8 on host gn-2\n"
    assert str(explain_text(moved + _OF_RANK_5).where) == "rank 5"


def test_nodes_are_no_hosts_of_ranks_that_slurm_did_not_start(explain_text: Explain) -> None:
    one_launcher_each = "SLURM_JOB_NODELIST=gn-[7-8]\nSLURM_NTASKS=2\nWORLD_SIZE=8\n"
    assert str(explain_text(one_launcher_each + _OF_RANK_5).where) == "rank 5"


def test_job_of_one_node_ran_there(explain_text: Explain) -> None:
    verdict = explain_text("SLURM_JOB_ID=88\nSLURM_JOB_NODELIST=gn-7\n" + uncaught(_NAN))
    assert str(verdict.where) == "host gn-7"


def test_command_that_spreads_ranks_over_its_hosts_tells_no_host(explain_text: Explain) -> None:
    spread = "+ mpirun -np 8 -H gn-7:4,gn-8:4 --map-by node python train.py\n"
    assert str(explain_text(spread + _OF_RANK_5).where) == "rank 5"


def test_host_that_a_rank_speaks_of_is_not_its_own(explain_text: Explain) -> None:
    speaks = "rank 5: connecting to host: gn-7, port: 29500\nrank 5 waits for rank 0 on host gn-7\n"
    assert str(explain_text(speaks + _OF_RANK_5).where) == "rank 5"


def test_launch_of_ours_tells_the_host_of_its_ranks(tmp_path: Path) -> None:
    log = tmp_path / "train_gpt_node1_20260304-101112.log"
    opened = event(
        "launch-opened", version="1", job="gpt", node_rank=1, nnodes=2, nproc_per_node=4, host="gn-8"
    )
    log.write_text(f"{in_text(opened)}\n{_OF_RANK_5}", encoding="utf-8")
    beside(log).write_bytes(as_json(opened, 1))
    assert str(explain_paths([log]).where) == "node 1, host gn-8, rank 5"


_WAITED = (
    "[rank{rank}]:[E1127 10:11:12.123 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600032 milliseconds before timing out.\n"
)
_TWO_NODES = (
    "[INFO] [launch.py:164:main] global_rank_mapping=defaultdict(<class 'list'>, "
    "{'gn-7': [0, 1], 'gn-8': [2, 3]})\n[INFO] [launch.py:165:main] dist_world_size=4\n"
)


def test_host_whose_ranks_alone_reported_no_timeout(explain_text: Explain) -> None:
    verdict = explain_text(_TWO_NODES + "".join(_WAITED.format(rank=rank, number=812) for rank in (0, 1)))
    assert str(verdict.where) == "host gn-8"
    assert "ranks 2, 3 (host gn-8) reported no timeout: look there first" in verdict.notes


def test_ranks_that_alone_report_a_timeout_are_told_with_how_many_there_are(explain_text: Explain) -> None:
    verdict = explain_text("WORLD_SIZE=16\n" + _WAITED.format(rank=3, number=812))
    assert (verdict.cause, str(verdict.where)) == ("nccl_watchdog", "rank 3")
    assert [note.split(";")[0] for note in verdict.notes] == ["of 16 ranks only these report it: rank 3"]


def test_first_collective_that_one_rank_tells_is_the_first_unless_it_worked_before(
    explain_text: Explain,
) -> None:
    waited = _WAITED.format(rank=3, number=1)
    assert explain_text(waited).cause == "first_collective"
    assert explain_text(progress(30) + waited).cause == "nccl_watchdog"


def test_rank_that_alone_runs_on_a_host_is_named(explain_text: Explain) -> None:
    one_each = "gn-7: [INFO] global_rank_mapping=defaultdict(<class 'list'>, {'gn-7': [0], 'gn-8': [1]})\n"
    raised = uncaught(_NAN, "gn-8: ")
    assert str(explain_text(one_each + raised).where) == "host gn-8, rank 1"
    assert str(explain_text(_TWO_NODES + raised).where) == "host gn-8"


def test_first_collective_of_some_ranks_tells_how_many_there_are(explain_text: Explain) -> None:
    verdict = explain_text("WORLD_SIZE=4\n" + "".join(_WAITED.format(rank=rank, number=1) for rank in (1, 3)))
    assert verdict.cause == "first_collective"
    assert "of 4 ranks only these report, and from the first collective: ranks 1, 3" in verdict.notes


def test_process_of_several_gpus_is_no_single_rank(explain_text: Explain) -> None:
    verdict = explain_text(
        "gn-8:4007:4301 [0] NCCL INFO comm 0x7f51 rank 4 nranks 8 cudaDev 0 - Init COMPLETE\n"
        "gn-8:4007:4302 [1] NCCL INFO comm 0x7f52 rank 5 nranks 8 cudaDev 1 - Init COMPLETE\n"
        "[gn-8:4007:0:4310] Caught signal 11 (Segmentation fault: address not mapped to object at 0x17)\n"
    )
    assert str(verdict.where) == "host gn-8"


def test_where_the_store_was_is_where_to_look(explain_text: Explain) -> None:
    lost = "[rank5]:[W1126 12:00:01.5 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=64, "
    verdict = explain_text(f"{lost}addr=[gn-8]:39562, remote=[gn-7]:29500): failed to recv, got 0 bytes\n")
    assert (verdict.cause, str(verdict.where)) == ("store_lost", "host gn-7")
    assert "the connection was lost by host gn-8, rank 5" in verdict.notes


def test_shell_whose_program_was_killed_names_its_host_below(explain_text: Explain) -> None:
    prompt = "(env) ann@gn-8:~/run$ "
    assert str(explain_text(f"{progress(5)}Killed\n{prompt}\n").where) == "host gn-8"
    assert str(explain_text(f"{progress(5)}Killed\nsee ann@gn-8: why?\n").where) == ""


@pytest.mark.parametrize(
    "told",
    [
        "TCPStore(host=gn-7, port=29500, world_size=8, rank=5)",
        "init: rank=5, world_size=8, host=gn-7, backend=nccl, init_method=tcp://gn-7:29500",
        "+ mpirun -np 8 -H gn-7,gn-8 python train.py",
    ],
)
def test_host_that_need_not_be_that_of_the_rank_is_none(told: str, explain_text: Explain) -> None:
    assert str(explain_text(f"{told}\n{_OF_RANK_5}").where) == "rank 5"


def test_nodes_of_the_last_job_in_a_file_count(explain_text: Explain) -> None:
    jobs = "".join(f"SLURM_JOB_NODELIST={host}\nstarted\n" for host in ("gn-7", "gn-8"))
    assert str(explain_text(jobs + uncaught(_NAN)).where) == "host gn-8"


def test_host_of_the_ranks_that_did_not_come_to_the_meeting(explain_text: Explain) -> None:
    came = "".join(
        f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4\n" for rank in (0, 1)
    )
    in_vain = "RuntimeError: Timed out after 1801 seconds waiting for clients. 2/4 clients joined."
    job = "SLURM_JOB_NODELIST=gn-[7-8]\nSLURM_NTASKS=4\n"
    verdict = explain_text(job + came + uncaught(in_vain, "[rank0]: "))
    assert (verdict.cause, str(verdict.where)) == ("rendezvous_timeout", "host gn-8")
    assert "of 4 ranks these did not come, as far as the logs tell: ranks 2, 3 (host gn-8)" in verdict.notes
