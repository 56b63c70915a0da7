"""A rank that leaves with a code of its own says nothing; its partners say much, and nothing of it."""

from __future__ import annotations

import io

from platform_launch.why.explaining import explain
from platform_launch.why.sources import LogSource
from tests.why.conftest import Explain, uncaught

LOG = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/job/train.py", line 41, in <module>
[rank2]:     dist.all_reduce(torch.ones(8))
[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711
W1122 12:00:01.000000 77 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 91 closing signal SIGTERM
E1122 12:00:01.200000 77 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 3) local_rank: 1 (pid: 92) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_12:00:01
  host      : node1
  rank      : 3 (local_rank: 1)
  exitcode  : {code} (pid: 92)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: E501 - as they were written


def explained(code: int) -> tuple[str, int | None]:
    text = LOG.replace("{code}", str(code)).replace("(exitcode: 3)", f"(exitcode: {code})")
    verdict = explain([LogSource("node1.log", io.BytesIO(text.encode()))])
    return verdict.cause or "", verdict.where.rank


def test_a_rank_that_left_with_its_own_code_comes_before_lost_connections() -> None:
    assert explained(3) == ("rank_exited", 3)


def test_a_rank_that_ended_as_any_exception_does_says_nothing_by_its_code() -> None:
    cause, _ = explained(1)
    assert cause != "rank_exited"


def test_an_exception_without_a_traceback_right_above_its_tasks_end_is_told(explain_text: Explain) -> None:
    verdict = explain_text(
        "RuntimeError: the third shard has no header\n"
        "srun: error: gn07: task 0: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 4217.0 ON gn07 CANCELLED AT 2026-11-21T03:14:06 ***\n"
    )
    assert (verdict.kind, verdict.title) == ("suspect", "RuntimeError: the third shard has no header")


def test_the_message_of_a_task_goes_on_behind_anothers_line(explain_text: Explain) -> None:
    lines = uncaught("RuntimeError: ops/src/voxels_cuda.cu 131").splitlines()
    lines.append("cuda execution failed with error 2")
    text = "".join(f"0: {line}\n1: {line}\n" for line in lines)
    assert explain_text(text).cause == "cuda_out_of_memory"


def test_what_a_rank_raised_right_above_its_end_is_the_cause(explain_text: Explain) -> None:
    verdict = explain_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 25, in main\n'
        "    x = x + skip\n"
        "RuntimeError: The size of tensor a (9) must match the size of tensor b (8)\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1 (pid: 2)\n"
    )
    assert (verdict.kind, verdict.cause) == ("cause", "shape_mismatch")
