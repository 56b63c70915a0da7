"""Which process failed, as launchers, shells and the names of files tell it beside the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.why.explaining import explain_file
from platform_launch.why.lines.line import Location
from platform_launch.why.sources import where_of_log
from tests.why.conftest import Explain, uncaught
from tests.why.corpus import LOGS

SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-02_10:00:04
  host      : gn7
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 4711)
============================================================
"""
ABORT = "ABORT!!! Out of all 4 trainers, the trainer process with"
REPLICA = "The replica {0} exited with a non-zero status of 1.\n"
ODD, SHORT = "RuntimeError: shard 1 is odd", "IndexError: list index out of range"


def test_of_several_exceptions_the_one_of_the_rank_that_ended_first_is_the_cause(
    explain_text: Explain,
) -> None:
    both = uncaught(ODD, "[rank1]: ") + uncaught(SHORT, "[rank3]: ")
    assert explain_text(both).title == ODD
    verdict = explain_text(both + SUMMARY)
    assert (verdict.title, str(verdict.where)) == (SHORT, "host gn7, rank 3")
    same = explain_text(uncaught(SHORT, "[rank1]: ") + uncaught(SHORT, "[rank3]: ") + SUMMARY)
    assert (str(same.where), same.notes[0]) == ("host gn7, rank 3", "the same on rank 1")
    # Within one second the launcher does not know either.
    other = SUMMARY.replace("Root Cause (first observed failure)", "Failures").replace(": 3 (", ": 1 (")
    assert explain_text(both + other + SUMMARY).title == ODD
    # A line that says more stands, and so does the clock.
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert explain_text(uncaught(memory, "[rank1]: ") + uncaught(ODD, "[rank3]: ") + SUMMARY).where.rank == 1


def test_what_a_launcher_lists_is_read_behind_the_name_of_the_stream_that_it_came_through(
    explain_text: Explain,
) -> None:
    told = "".join(f"stderr: {line}\n" for line in SUMMARY.splitlines()[3:])
    verdict = explain_text("Running the script that was given\n" * 12 + told)
    assert (verdict.kind, str(verdict.where)) == ("unknown", "host gn7, rank 3")


def test_process_that_a_test_spawned_is_named_behind_what_pytest_puts_before_its_error(
    explain_text: Explain,
) -> None:
    told = "-- Process 3 terminated with the following error:\n" + uncaught(ODD)
    shown = "".join(f"E       {line}\n" for line in told.splitlines())
    verdict = explain_text("    def test_shards():\n>       spawn(run, nprocs=4)\n\n" + shown)
    assert (verdict.title, str(verdict.where)) == (ODD, "local rank 3")


def test_where_several_processes_without_a_name_show_the_same_a_note_says_who_ended_first(
    explain_text: Explain,
) -> None:
    same = explain_text(uncaught(SHORT) * 4 + SUMMARY)
    said = "several processes show it; the first to exit, according to the launcher: rank 3"
    assert (str(same.where), same.notes[0]) == ("host gn7", said)
    # Whose other exception it was does not show; and where only one shows it, it is the place itself.
    assert said not in explain_text(uncaught(SHORT) * 2 + uncaught(ODD) + SUMMARY).notes
    one = explain_text(uncaught(SHORT) + SUMMARY)
    assert (str(one.where), one.notes) == ("host gn7, rank 3", ())


def test_local_rank_of_the_first_of_several_is_named_where_the_launcher_tells_no_other(
    explain_text: Explain,
) -> None:
    line = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 5 (pid: 811)"
    used = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:911, invalid usage, NCCL version 2.7.8"
    verdict = explain_text(uncaught(used) * 3 + f"{line} of binary: python\n")
    assert verdict.cause == "nccl_invalid_usage"
    assert verdict.notes[0].endswith("the first to exit, according to the launcher: local rank 5")


def test_of_two_nodes_summaries_the_earlier_one_tells_who_ended_first(explain_text: Explain) -> None:
    later = SUMMARY.replace("10:00:04", "10:00:05").replace("gn7", "gn8").replace(": 3 (", ": 7 (")
    both = uncaught(SHORT, "[rank7]: ") + uncaught(ODD, "[rank3]: ")
    assert explain_text(both + later + SUMMARY).where.rank == 3


def test_of_equal_failures_in_several_files_the_one_that_came_least_far_is_the_first(
    explain_text: Explain,
) -> None:
    late, early = (f"2026-11-02 10:00:{second} step 40 done\n{uncaught(ODD)}" for second in ("09", "03"))
    assert explain_text(late, early).evidence[0].log == "log1"
    assert explain_text(early, late).evidence[0].log == "log0"


@pytest.mark.parametrize(
    ("log", "places"),
    [
        (f"{ABORT} rank=[2] was aborted.\n", ["rank 2"]),
        (f"{ABORT} rank=[0, 1] was aborted.\n", ["rank 0", "rank 1"]),
        ("[2026-11-02 10:00:00] Rank[2] failed.\n", ["rank 2"]),
    ],
)
def test_all_processes_that_a_launcher_names_are_told(
    explain_text: Explain, log: str, places: list[str]
) -> None:
    verdict = explain_text(log)
    assert (verdict.kind, str(verdict.where)) == ("unknown", places[0])
    assert all(any(place in note for note in verdict.notes) for place in places[1:])


def test_file_of_azures_names_its_process() -> None:
    assert where_of_log(Path("user_logs/std_log_process_03.txt")).rank == 3


def test_processes_that_a_signal_ended_in_the_same_second_are_named() -> None:
    verdict = explain_file(LOGS / "bus_error_on_all_ranks.log")
    assert (str(verdict.where), verdict.notes) == ("host gn31, rank 1", ("the same on ranks 2, 3",))
    # The launcher ends those that are left with SIGTERM, in the same second too.
    assert explain_file(LOGS / "terminated_one_rank.log").notes == ()


def test_a_file_before_each_line_is_no_host(explain_text: Explain) -> None:
    of_rank = explain_text(uncaught(ODD, "std_log_process_5.txt: "))
    assert (of_rank.where.rank, of_rank.where.host) == (5, None)
    assert str(explain_text(uncaught(ODD, "train.log | ")).where) == ""


def test_rank_that_calls_another_collective_than_all_others(explain_text: Explain) -> None:
    reduces, meets = "OpType=ALLREDUCE, TensorShape=[4, 5], TensorDtypes=Float)", "OpType=BARRIER)"
    differ = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, {}, but Rank {} is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3{}.Collectives differ in the following aspects: Op type"
    )
    said = [
        uncaught(differ.format(0, reduces, 1, "OpType=REDUCE)"), "[rank0]: "),
        uncaught(differ.format(1, meets, 0, "OpType=GATHER)"), "[rank1]: "),
        uncaught(differ.format(2, reduces, 1, "OpType=REDUCE)"), "[rank2]: "),
    ]
    for log in ("".join(said), "".join(reversed(said))):
        verdict = explain_text(log)
        assert (verdict.kind, verdict.cause, verdict.where.rank) == ("cause", "collective_mismatch", 1)
        assert "rank 1 ran BARRIER; ranks 0, 2 ran ALLREDUCE" in verdict.notes
    verdict = explain_text(said[0])
    assert (verdict.where.rank, verdict.details["peer"]) == (0, "1")


def test_rank_whose_tensor_has_another_shape_than_all_others(explain_text: Explain) -> None:
    differ = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[{}]), but Rank {} is running "
        "collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[{}])."
    )
    shapes = {0: "10, 2", 1: "10, 2", 2: "7, 2"}
    log = "".join(
        uncaught(differ.format(rank, shapes[rank], peer, shapes[peer]), f"[rank{rank}]: ")
        for rank, peer in ((0, 2), (1, 2), (2, 0))
    )
    verdict = explain_text(log)
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("cause", "collective_mismatch", 2)


@pytest.mark.parametrize(
    ("ended", "code", "cause"), [("Killed", 137, "killed"), ("Segmentation fault", 139, "segfault")]
)
def test_signal_that_the_shell_of_one_task_tells_of(
    explain_text: Explain, ended: str, code: int, cause: str
) -> None:
    verdict = explain_text(
        f"run.sh: line 3: 4711 {ended}     python train.py\n"
        "3: [rank3]: RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
        " [10.3.0.9]:48\n"
        f"srun: error: node17: task 2: Exited with exit code {code}\n"
        "srun: error: node17: tasks 0-1,3: Exited with exit code 1\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.where.task) == (cause, "node17", 2)


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Rank 9 failed to pass monitoredBarrier in 4000 ms",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/9",
    ],
)
def test_host_of_the_rank_that_waited_is_not_that_of_the_one_it_waited_for(
    explain_text: Explain, error: str
) -> None:
    assert explain_text(uncaught(error, "node17: [rank0]: ")).where == Location(rank=9)


def test_traceback_in_what_a_launcher_lists_is_of_the_process_above_it(explain_text: Explain) -> None:
    told = "".join(f"  {line}\n" for line in uncaught(ODD).splitlines()).lstrip()
    listed = SUMMARY.replace("(pid: 4711)\n", f"(pid: 4711)\n  error_file: /tmp/e.json\n  traceback : {told}")
    other = listed.replace(": 3 (", ": 1 (").replace("gn7", "gn9").replace(ODD, SHORT)
    verdict = explain_text(listed + other)
    assert (verdict.title, str(verdict.where)) == (ODD, "host gn7, rank 3")


def test_what_an_exception_in_cpp_says_outranks_that_operations_failed(explain_text: Explain) -> None:
    verdict = explain_text(
        "[E ProcessGroupNCCL.cpp:414] Some NCCL operations have failed or timed out.\n"
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  NCCL error: unhandled system error, NCCL version 2.10.3\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 2 (pid: 51)\n"
    )
    assert (verdict.cause, verdict.where.local_rank) == ("nccl_system_error", 2)


def test_a_signal_that_torch_names_is_what_ended_the_process(explain_text: Explain) -> None:
    raised = "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV\n"
    verdict = explain_text(uncaught(raised.strip()))
    assert (verdict.cause, verdict.where.local_rank) == ("segfault", 3)


def test_what_another_node_reported_is_repeated_if_only_this_log_is_there(explain_text: Explain) -> None:
    log = """\
[node 0] 21:54:33 [ERROR] node 1, gn8: the training ended with exit code 1 [node-failed node=1]
[node 0] 21:54:33 [ERROR] cause:      KeyError: 'size' [python_exception] on node 1 [node-quoted node=1]
[node 0] 21:54:33 [ERROR] raised at:  /job/train.py:5 in <module> [node-quoted node=1]
"""
    verdict = explain_text(log)
    assert verdict.cause == "other_node_failed"
    assert verdict.notes[:2] == (
        "reported by that node: cause: KeyError: 'size' [python_exception] on node 1",
        "reported by that node: raised at: /job/train.py:5 in <module>",
    )
