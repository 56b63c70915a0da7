"""Tracebacks that a training shows and goes on after: it tries code, or quotes what a model wrote."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress, uncaught

TRIED = uncaught("ModuleNotFoundError: No module named 'sympy_plus'", file="/tmp/tmpk3/solution.py")
OOM = uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    "quotes",
    [
        "[sandbox] exit code 1, stderr:\n",
        "Completion:\n",
        "=== sample 3 ===\nThe program prints\n",
        "Model output: ```\n",
        "Generated text: ",
    ],
)
def test_a_traceback_that_is_quoted_ends_nothing(explain_text: Explain, quotes: str) -> None:
    quoted = progress(12) + quotes + TRIED
    assert explain_text(quoted + progress(30)).kind == "nothing"
    assert explain_text(quoted + progress(30) + OOM).cause == "cuda_out_of_memory"
    assert explain_text(quoted).cause == "missing_module", (
        "where nothing follows, it may be the training's own"
    )


@pytest.mark.parametrize(
    "below", ["Retrying in 5 s [1/3]\n", "skipping this batch\n", "[WARNING] falling back to CPU\n"]
)
def test_a_traceback_below_which_its_code_says_that_it_goes_on(explain_text: Explain, below: str) -> None:
    caught = uncaught(
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): no route"
    )
    assert explain_text(caught + below + progress(30) + OOM).cause == "cuda_out_of_memory"
    assert explain_text(caught + below + progress(30)).kind == "nothing"


@pytest.mark.parametrize("above", ["", "loading the model\n", "[rank0] evaluating\n"])
def test_any_other_traceback_ended_its_process(explain_text: Explain, above: str) -> None:
    assert explain_text(progress(12) + above + TRIED + progress(30)).cause == "missing_module"


@pytest.mark.parametrize(
    "before",
    [
        "[sandbox] ",
        "(Worker pid=77) [reward] ",
        "Response: Sure, the error\n",
        ">>> sample 4\nA person asks about this:\n",
        "rollout #3: failed\n",
    ],
)
def test_one_step_below_a_quoted_traceback_shows_that_it_ended_nothing(
    explain_text: Explain, before: str
) -> None:
    quoted = "".join(
        f"{before if before.startswith(('[', '(')) else ''}{line}\n" for line in TRIED.splitlines()
    )
    above = "" if before.startswith(("[", "(")) else before
    assert explain_text(progress(12) + above + quoted + progress(2)).kind == "nothing"


@pytest.mark.parametrize(
    "line",
    [
        "eval - sample 3: prompt: Why? answer: RuntimeError: CUDA error: misaligned address",
        "[0] <|user|> I get RuntimeError: CUDA error: misaligned address <|assistant|> Wait.",
        "| 7 | Why is it slow? | RuntimeError: CUDA error: misaligned address | 0.5 |",
        "- Fix RuntimeError: CUDA error: misaligned address on small nodes",
        "test_ordinal (tests.test_gpu.TestGpu) ... RuntimeError: CUDA error: misaligned address",
        '-        print("CUDA error: misaligned address")',
    ],
)
def test_a_line_that_quotes_a_failure_is_none(explain_text: Explain, line: str) -> None:
    told = "srun: error: gn03: task 3: Exited with exit code 1\n"
    assert explain_text(f"loading\n{line}\nready\n{told}").cause != "illegal_memory_access"
    lost = line.replace("CUDA error: misaligned address", "Connection reset by peer")
    assert explain_text(f"loading\n{lost}\nready\n").kind in ("nothing", "unknown")


def test_a_size_that_does_not_fit_and_for_which_a_smaller_one_is_taken(explain_text: Explain) -> None:
    tried = "CUDA out of memory. Tried to allocate 20.00 MiB\nsize 64 does not fit, trying batch size 32\n"
    shape = "RuntimeError: shape '[8, 4]' is invalid for input of size 31"
    assert explain_text(tried + progress(4) + uncaught(shape)).cause != "cuda_out_of_memory"
