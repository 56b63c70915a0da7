"""Failures that no signature knows: the line that says it, its place and how the process ended."""

from __future__ import annotations

import json

import pytest

from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.lines.line import parse
from platform_launch.why.reading.error_lines import hints_at_error, reports_error
from tests.why.conftest import Explain, progress, uncaught

NOISE = (
    "INFO args: Namespace(on_error='raise', log_level='error', max_errors=0)\n"
    "self-test finished: 0 errors, 0 failures\n"
    'python train.py --log-level error, open(path, errors="ignore")\n'
    "eval error_rate=0.25 error: 0.125 failed=0\n"
)
EXITED = "srun: error: gn07: task 3: Exited with exit code 5\n"
WAITED = "".join(
    f"[rank{rank}]:[E1103 10:12:4{rank}.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=120, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 ms\n"
    for rank in range(2)
)


def first_line(verdict: Verdict) -> int | None:
    return verdict.first_error.line if verdict.first_error else None


@pytest.mark.parametrize("line", NOISE.splitlines())
def test_a_word_for_errors_in_an_option_or_a_measurement_is_none(line: str) -> None:
    assert not hints_at_error(parse(1, line.encode()))
    assert not reports_error(parse(1, line.encode()))


def test_the_error_of_a_rank_that_then_waited_too_is_only_named(explain_text: Explain) -> None:
    verdict = explain_text("[rank1]: ERROR: no fused kernel, using the plain one\n" + WAITED)
    assert verdict.cause == "nccl_watchdog"
    assert [one.id for one in verdict.noted if one.id == "error-above"]


def test_the_last_words_of_a_process_that_did_not_say_why_are_told(explain_text: Explain) -> None:
    last = "2: the trainer leaves: a plan for 64 chips on 48\n"
    verdict = explain_text(progress(12) + last + "srun: error: gn05: task 2: Exited with exit code 1\n")
    assert verdict.cause == "exited_first"
    told = next(one for one in verdict.noted if one.id == "last-words")
    assert told.values["line"] == 13
    verdict = explain_text(last + progress(12) + "srun: error: gn05: task 2: Exited with exit code 1\n")
    assert "last-words" not in {one.id for one in verdict.noted}


def test_the_headline_says_whether_there_are_last_words_and_the_launchers_own_are_none(
    explain_text: Explain,
) -> None:
    ours = "09:10:11 == 5/5 Launch ====\n09:10:12 [SUCCESS] all 2 nodes are connected [roll-call-complete]\n"
    report = "E1125 09:10:20 2 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
    report += "local_rank: 1 (pid: 4711) of binary: /usr/bin/python3\n"
    silent = explain_text(ours + report)
    assert silent.headline("en").startswith("unknown: nothing printed shows why; ")
    assert "last-words" not in {one.id for one in silent.noted}
    leaving = explain_text(ours + "the data set has 0 samples after filtering\n" + report)
    assert leaving.headline("en").startswith("unknown: no error was printed; the last line may show")
    assert "last-words" in {one.id for one in leaving.noted}


def test_a_key_that_is_zero_is_no_count_of_errors(explain_text: Explain) -> None:
    assert explain_text("    self.slots[key]\nKeyError: 0\n").title == "KeyError: 0"
    assert explain_text("val_error: 0\nvalerror: 0.5\n").kind == "nothing"


@pytest.mark.parametrize(
    "said",
    [
        "E0000 00:00:17.1 12 dnn.cc:83] Unable to register cuDNN factory: one has already been registered\n",
        "fatal: not a git repository (or any of the parent directories): .git\n",
        "[W1103 10:12:44.1 socket.cpp:207] The hostname of the client socket cannot be retrieved. err=-3\n",
        "tokenizer config not found, using default values\n",
        "apex is not supported here, falling back to torch\n",
    ],
)
def test_what_programs_do_without_is_not_why_one_ended(explain_text: Explain, said: str) -> None:
    assert explain_text(progress(12) + said + EXITED).cause == "exited_first"
    assert explain_text(progress(12) + said + WAITED).cause == "nccl_watchdog"


def test_last_words_that_give_a_reason_answer_however_long_the_launchers_report_is(
    explain_text: Explain,
) -> None:
    failed = "E1103 10:13:00.000000 140 torch/distributed/elastic/multiprocessing/api.py:826] failed "
    block = (
        f"{failed}(exitcode: 7) local_rank: 2 (pid: 4412) of binary: python\n"
        "Traceback (most recent call last):\n"
        + '  File "/env/lib/python3.11/site-packages/torch/distributed/run.py", line 8, in run\n'
        * 40
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-11-03_10:13:00\n  host      : gn05\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : 7 (pid: 4412)\n============\n"
    )
    said = "[rank2]: the quota service rejected the request\n"
    verdict = explain_text(progress(12) + said + block)
    assert (first_line(verdict), verdict.where.rank, verdict.where.host) == (13, 2, "gn05")
    assert "process-ended" in {one.id for one in verdict.noted}
    assert explain_text(progress(12) + block).cause == "rank_exited"


def test_a_host_on_which_only_later_tasks_ended_is_not_the_one_of_an_earlier_rank(
    explain_text: Explain,
) -> None:
    verdict = explain_text(WAITED + EXITED)
    assert (verdict.cause, verdict.where.rank, verdict.where.host) == ("nccl_watchdog", 0, None)


def test_the_rank_and_the_level_that_a_program_logs_beside_its_message_count(explain_text: Explain) -> None:
    said = '{"level": "error", "msg": "shard 12 is older than its manifest", "rank": 2}\n'
    verdict = explain_text(progress(5) + said + '{"level": "info", "msg": "closing", "rank": 2}\n')
    assert (verdict.kind, first_line(verdict), verdict.where.rank) == ("unknown", 6, 2)


def test_a_traceback_in_a_report_that_a_logger_calls_mild_was_caught(explain_text: Explain) -> None:
    record = json.dumps({"level": "info", "msg": "no probe\n" + uncaught("ValueError: no device")}) + "\n"
    assert explain_text(record + uncaught("MyError: oh")).title == "MyError: oh"
    assert explain_text(record + "on\n" * 5).kind == "nothing"
    lines = uncaught("ValueError: no device").splitlines()  # of a collector that calls all lines so
    each = "".join(json.dumps({"level": "info", "msg": line}) + "\n" for line in lines)
    assert explain_text(each).kind == "cause"


def test_a_file_that_is_missing_is_told_with_the_error_of_what_was_to_write_it(explain_text: Explain) -> None:
    failed = "- 04:05:06.789 ERROR: the profile holds no rows\n"
    missing = uncaught("FileNotFoundError: [Errno 2] No such file or directory: 'out/profile.tab'")
    verdict = explain_text(failed + missing)
    assert (verdict.cause, [one.values["line"] for one in verdict.noted]) == ("file_missing", [1])
    assert explain_text(failed + progress(60) + missing).noted == ()


def test_an_error_of_hdf5_below_netcdf_may_be_a_lock(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("OSError: [Errno -101] NetCDF: HDF error: '/data/t2m.nc'"))
    assert (verdict.kind, verdict.cause) == ("cause", "file_lock")


def test_the_text_of_a_warning_is_no_error(explain_text: Explain) -> None:
    text = "ERROR: the shards are not sorted\n\n  warnings.warn(\nepoch 3 done\n"
    assert explain_text("/opt/io.py:7: UserWarning: \n" + text).kind == "nothing"
    assert explain_text("/opt/io.py:7: \n" + text).first_error is not None


@pytest.mark.parametrize("prefix", ["", "driver  | "])
def test_a_frame_of_java_is_not_the_line_that_says_an_error(explain_text: Explain, prefix: str) -> None:
    verdict = explain_text(
        f"{prefix}\tat org.apache.spark.errors.SparkErrors.failedError(SparkErrors.scala:2)\n"
        f"{prefix}\tat java.base/java.lang.Thread.run(Thread.java:829)\n"
        f"{prefix}26/01/02 03:04:09 ERROR TaskSetManager: Task 2 failed 4 times; aborting job\n"
    )
    assert verdict.first_error is not None
    assert verdict.first_error.line == 3


def test_at_the_end_of_a_log_a_message_is_read_whatever_its_words(explain_text: Explain) -> None:
    message, dull = (
        "Distributed package doesn't have NCCL built in\n",
        "the weather is fine today and so is the view\n" * 1000,
    )
    assert explain_text(dull + message + dull[:8000]).cause == "nccl_not_built"
    assert explain_text(dull + message + dull).cause is None


ABORTED = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"


def test_what_a_program_says_before_it_calls_mpi_abort_is_its_reason(explain_text: Explain) -> None:
    verdict = explain_text(
        "mesh: the grid must be at least 4 cells wide\n"
        "Command error:\n"
        "  ps: /opt/lib/libuuid.so.1: no version information available (required by /lib64/libblkid.so.1)\n"
        + ABORTED
    )
    assert (verdict.kind, first_line(verdict), str(verdict.where)) == ("unknown", 1, "rank 2")


def test_a_heading_above_a_harmless_line_is_no_error(explain_text: Explain) -> None:
    harmless = "tool: /opt/lib/libz.so.1: no version information available (required by tool)\n"
    assert explain_text(f"Command error:\n{harmless}step 1\n").kind == "nothing"
