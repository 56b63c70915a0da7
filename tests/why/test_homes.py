"""A rank's host stands where the job began, and the failure names the rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.events import as_json, beside, event, in_text
from platform_launch.why.explaining import explain_paths
from tests.why.conftest import Explain, progress, uncaught

_NAN = "ValueError: loss is nan"
_OF_RANK_5 = uncaught(_NAN, "[rank5]: ")


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


def test_first_collective_that_one_rank_tells_is_the_first_unless_it_worked_before(
    explain_text: Explain,
) -> None:
    waited = _WAITED.format(rank=3, number=1)
    assert explain_text(waited).cause == "first_collective"
    assert explain_text(progress(30) + waited).cause == "nccl_watchdog"


def test_first_collective_of_some_ranks_tells_how_many_there_are(explain_text: Explain) -> None:
    verdict = explain_text("WORLD_SIZE=4\n" + "".join(_WAITED.format(rank=rank, number=1) for rank in (1, 3)))
    assert verdict.cause == "first_collective"
    assert "of 4 ranks, only these report a timeout, in the first collective: ranks 1, 3" in verdict.notes


def test_process_of_several_gpus_is_no_single_rank(explain_text: Explain) -> None:
    verdict = explain_text(
        "gn-8:4007:4301 [0] NCCL INFO comm 0x7f51 rank 4 nranks 8 cudaDev 0 - Init COMPLETE\n"
        "gn-8:4007:4302 [1] NCCL INFO comm 0x7f52 rank 5 nranks 8 cudaDev 1 - Init COMPLETE\n"
        "[gn-8:4007:0:4310] Caught signal 11 (Segmentation fault: address not mapped to object at 0x17)\n"
    )
    assert str(verdict.where) == "host gn-8"


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
