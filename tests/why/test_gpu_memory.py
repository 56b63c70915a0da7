"""What the lines about a GPU's memory tell beside that it ran out."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught

NEW = "torch.OutOfMemoryError: {} out of memory. Tried to allocate {}. GPU 1 has a total capacity of {} of which {} is free."  # noqa: E501
OLD = "RuntimeError: {} out of memory. Tried to allocate {} (GPU 1; {} total capacity; 9.00 GiB already allocated; {} free; 9.50 GiB reserved in total by PyTorch)"  # noqa: E501


@pytest.mark.parametrize("form", [NEW, OLD])
@pytest.mark.parametrize(
    ("device", "asked", "capacity", "cause"),
    [
        ("CUDA", "1024.00 GiB", "79.11 GiB", "oversized_allocation"),
        ("HIP", "64.00 GiB", "63.98 GiB", "oversized_allocation"),
        ("HIP", "60.00 GiB", "63.98 GiB", "device_out_of_memory"),
        ("CUDA", "512.00 MiB", "79.11 GiB", "cuda_out_of_memory"),
        ("CUDA", "9.00 GiB", "79.11 GiB", "cuda_out_of_memory"),
        ("CUDA", "100.00 GiB", "79.11 TiB", "cuda_out_of_memory"),
    ],
)
def test_an_allocation_larger_than_the_gpu_is_no_lack_of_memory(
    explain_text: Explain, form: str, device: str, asked: str, capacity: str, cause: str
) -> None:
    verdict = explain_text(uncaught(form.format(device, asked, capacity, "5.00 GiB"), "[rank3]: "))
    assert (verdict.cause, verdict.where.rank, verdict.where.gpu) == (cause, 3, "1")
    assert verdict.fix.startswith("Smaller batch") == (cause != "oversized_allocation")
