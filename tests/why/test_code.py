"""A script that a log holds, printed before it runs: what it says of failures has not happened."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress, uncaught

SCRIPT = '''\
import os
import torch
from pynvml import NVMLError_DriverNotLoaded

class Store:
    def __init__(self, folder):
        self.folder = folder

    def save(self, state):
        """Write it whole.

        Raises RuntimeError: CUDA error: device-side assert triggered
        """
        if self.folder is None:
            raise RuntimeError(
                "CUDA out of memory. Tried to allocate 2.00 GiB"
            )
        assert torch.cuda.is_available(), "Torch not compiled with CUDA enabled"
        # RuntimeError: The size of tensor a (6) must match the size of tensor b (4)
        try:
            return torch.save(state, self.folder)
        except OSError:
            raise RuntimeError("No space left on device")
'''


@pytest.mark.parametrize("above", ["", progress(20)])
def test_a_script_is_no_failure(explain_text: Explain, above: str) -> None:
    assert explain_text(f"{above}{SCRIPT}").kind in ("nothing", "unknown")


def test_a_script_above_a_failure_is_not_its_cause(explain_text: Explain) -> None:
    assert explain_text(f"{SCRIPT}{progress(9)}{uncaught('KeyError: 3')}").title == "KeyError: 3"


@pytest.mark.parametrize("source", ["", "    loss = model(batch)\n    loss.backward()\n"])
def test_a_failure_among_lines_of_code_is_one(explain_text: Explain, source: str) -> None:
    said = f"{source}RuntimeError: CUDA error: device-side assert triggered\n"
    assert explain_text(said).cause == "device_assert"
