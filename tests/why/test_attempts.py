"""Several attempts of one training in one log: what a later one worked after is not the cause."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress, uncaught

MISSING = uncaught("FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'")
OOM = uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
TORCHRUN = (
    "W0102 03:04:05.000000 123 torch/distributed/elastic/agent/server/api.py:800] [default] Worker group "
    "FAILED. 2/3 attempts left; will restart worker group\n"
)
BEGINNINGS = [
    TORCHRUN,
    "Resuming training from /ckpt/step_40\n",
    "== Attempt 2 ==\n",
    "Starting attempt 2/5\n",
    "attempt 1 failed with code 1\n",
    "[launcher] restarting the training in 30 s\n",
    "The job was requeued\n",
    "slurmstepd: error: *** JOB 44 ON gn01 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE ***\n",
]


@pytest.mark.parametrize("begins", BEGINNINGS)
def test_an_attempt_that_worked_leaves_those_before_it_behind(explain_text: Explain, begins: str) -> None:
    assert explain_text(progress(5) + MISSING + begins + progress(20) + OOM).cause == "cuda_out_of_memory"
    verdict = explain_text(progress(5) + MISSING + begins + progress(20))
    assert verdict.kind == "nothing"
    assert "earlier-attempt" in [one.id for one in verdict.noted]


@pytest.mark.parametrize("begins", BEGINNINGS)
def test_an_attempt_that_never_worked_may_have_failed_of_the_first_one(
    explain_text: Explain, begins: str
) -> None:
    left = "Timed out initializing process group in store based barrier on rank: 0"
    left += " (world_size=2, worker_count=4)\n"
    assert explain_text(progress(5) + OOM + begins + progress(2) + left).cause == "cuda_out_of_memory"


@pytest.mark.parametrize(
    "line",
    [
        "upload failed (attempt 1/5)\n",
        "please restart the kernel\n",
        "server restarted\n",
    ],
)
def test_what_is_tried_again_within_a_training_begins_none(explain_text: Explain, line: str) -> None:
    fault = uncaught("RuntimeError: CUDA error: an illegal memory access was encountered")
    assert explain_text(fault + line + progress(20)).cause == "illegal_memory_access"


@pytest.mark.parametrize("begins", BEGINNINGS)
def test_what_ended_the_last_attempt_answers_if_it_has_a_cause_of_its_own(
    explain_text: Explain, begins: str
) -> None:
    own = uncaught("KeyError: 'reward'")
    assert explain_text(OOM + begins + progress(2) + own).title == "KeyError: 'reward'"
    left_without = uncaught("AttributeError: 'NoneType' object has no attribute 'step'")
    assert explain_text(OOM + begins + progress(2) + left_without).cause == "cuda_out_of_memory"


def test_a_loop_in_a_script_starts_the_same_program_again(explain_text: Explain) -> None:
    own = uncaught("KeyError: 'reward'")
    log = f"+ python train.py --seed 1\n{OOM}+ sleep 9\n+ python train.py --seed 2\n{own}"
    assert explain_text(log).title == "KeyError: 'reward'"
    assert explain_text(log.replace("train.py --seed 2", "evaluate.py")).cause == "cuda_out_of_memory"


HEAD = (
    "Wed Jan  {day} 03:0{day}:00 2026\n"
    "Running on gpu-node-{day} of partition a100\n"
    "Python 3.11, torch 2.6.0, CUDA 12.4\n"
)


def test_a_log_whose_first_lines_are_repeated_holds_another_attempt(explain_text: Explain) -> None:
    first, again = HEAD.format(day=1), HEAD.format(day=2)
    verdict = explain_text(first + MISSING + again + progress(20))
    assert verdict.kind == "nothing"
    assert "earlier-attempt" in [one.id for one in verdict.noted]
    assert explain_text(first + MISSING + again + progress(20) + OOM).cause == "cuda_out_of_memory"
    own = uncaught("KeyError: 'reward'")
    assert explain_text(first + OOM + again + own).title == "KeyError: 'reward'"
    assert explain_text(first + OOM + progress(20)).cause == "cuda_out_of_memory"


def test_first_lines_that_are_repeated_before_anything_failed_begin_no_attempt(explain_text: Explain) -> None:
    head = HEAD.format(day=1)
    assert explain_text(head + head + OOM + head + progress(20)).cause == "cuda_out_of_memory"
    each = "epoch 1 of 90 on the training set\nvalidation of the model\nsaved the checkpoint to disk\n"
    assert explain_text(each + OOM + each + progress(20)).cause == "cuda_out_of_memory"


def test_answers_of_a_server_are_work(explain_text: Explain) -> None:
    served = 'INFO:     10.0.0.7:4242 - "POST /act HTTP/1.1" {code} OK\n'
    assert explain_text(MISSING + BEGINNINGS[0] + 20 * served.format(code=200)).kind == "nothing"
    assert explain_text(MISSING + BEGINNINGS[0] + 20 * served.format(code=500)).cause == "file_missing"


@pytest.mark.parametrize(
    "killed", ["Killed", "job.sh: line 9: 4007 Killed                  python prepare.py"]
)
def test_what_a_shell_began_behind_a_killed_program_failed_by_itself(
    explain_text: Explain, killed: str
) -> None:
    verdict = explain_text(killed + "\n" + uncaught("KeyError: 'reward'"))
    assert verdict.title == "KeyError: 'reward'"
    assert "a process was killed (signal 9)" in verdict.notes[0]
    missed = killed + "\n" + uncaught("FileNotFoundError: [Errno 2] No such file or directory: 'part-0.bin'")
    assert explain_text(missed).cause == "killed"
