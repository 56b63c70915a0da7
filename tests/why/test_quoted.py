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
