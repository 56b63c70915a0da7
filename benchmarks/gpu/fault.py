"""A worker of `benchmarks/gpu`: break CUDA in the way that is asked for. It is not expected to end well."""

from __future__ import annotations

import sys

import torch

kind = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
if kind == "out_of_memory":
    kept = [torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(10_000)]
elif kind == "device_assert":
    torch.nn.functional.embedding(
        torch.tensor([10], device=device), torch.zeros(4, 4, device=device)
    ).sum().item()
elif kind == "illegal_access":
    import ctypes

    # A copy between addresses that nobody has allocated, in the driver's own words.
    torch.zeros(1, device=device)
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    source = b"""
    .version 7.0
    .target sm_70
    .address_size 64
    .visible .entry bad() { .reg .b64 %a; mov.b64 %a, 4096; st.global.u32 [%a], 1; ret; }
    """
    assert driver.cuModuleLoadData(ctypes.byref(module), source) == 0, "the driver refused the kernel"
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"bad") == 0
    driver.cuLaunchKernel(kernel, *([1] * 6), 0, None, None, None)
    torch.cuda.synchronize()
elif kind == "spinning_kernel":
    print("Step 1/100 | Loss: 0.1 | PSNR: 18.5 dB", flush=True)
    torch.cuda._sleep(2**62)
    torch.cuda.synchronize()
