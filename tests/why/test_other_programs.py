"""Programs of one batch script that failed one after the other: which answers, and how surely."""

from __future__ import annotations

from tests.why.conftest import Explain, uncaught

WRONG = "KeyError: 'split'"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def failed(script: str, message: str, prefix: str = "") -> str:
    """What is printed where a program of that name fails."""
    return uncaught(message, prefix).replace("/workspace/train.py", f"/workspace/{script}")


def test_of_two_programs_that_failed_by_themselves_the_first_is_likely_and_the_other_named(
    explain_text: Explain,
) -> None:
    verdict = explain_text(failed("prepare.py", WRONG) + failed("train.py", MEMORY))
    assert (verdict.kind, verdict.title) == ("suspect", WRONG)
    assert any("another program" in one and "CUDA out of memory" in one for one in verdict.notes)
    assert explain_text(failed("train.py", WRONG) + failed("train.py", MEMORY)).kind == "cause"


def test_a_program_that_several_processes_ran_answers_before_a_single_one(explain_text: Explain) -> None:
    verdict = explain_text(failed("prepare.py", WRONG) + 4 * failed("train.py", MEMORY))
    assert (verdict.kind, verdict.cause) == ("suspect", "cuda_out_of_memory")
    assert any(WRONG in one for one in verdict.notes)
    verdict = explain_text(4 * failed("train.py", MEMORY) + failed("evaluate.py", WRONG))
    assert (verdict.kind, verdict.cause) == ("suspect", "cuda_out_of_memory")


def test_what_the_first_program_did_not_write_is_no_cause_of_the_next_one(explain_text: Explain) -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/out/model.pt'"
    verdict = explain_text(failed("train.py", MEMORY) + 4 * failed("evaluate.py", missing))
    assert (verdict.kind, verdict.cause) == ("cause", "cuda_out_of_memory")


def test_a_launcher_or_a_rank_is_no_other_program(explain_text: Explain) -> None:
    launcher = failed("x", "RuntimeError: failed").replace("/workspace/x", "/env/bin/torchrun")
    assert explain_text(failed("train.py", WRONG) + launcher).kind == "cause"
    ranks = failed("train.py", WRONG, "[rank1]: ") + failed("worker.py", MEMORY, "[rank0]: ")
    assert explain_text(ranks).kind == "cause"
    called = failed("run_all.py", "RuntimeError: the training ended with code 1")
    assert explain_text(failed("train.py", WRONG) + called).kind == "cause"
