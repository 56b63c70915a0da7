"""Tests whether torch or JAX can be imported, starts, and can use every device; prints one JSON object.

    python starts.py torch 60

Exits by itself after that many seconds. Run as a script, never imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Print the object; what libraries print goes to stderr."""
    library, limit_s = sys.argv[1:]
    signal.alarm(int(limit_s))  # the process that started this may be gone
    out = os.dup(1)
    os.dup2(2, 1)
    facts = of_jax() if library == "jax" else of_torch()
    os.write(out, b"\n" + json.dumps(facts).encode())  # a line of its own, whatever was printed before
    os._exit(0)  # shutting CUDA down may hang if starting it did


def of_torch() -> dict[str, object]:
    """Return torch's facts about itself and the GPUs."""
    try:
        import torch
        from torch import distributed as dist
    except Exception as error:
        return {"import_problem": f"{type(error).__name__}: {error}"}
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "nccl": dist.is_nccl_available(),
        "devices": torch.cuda.device_count(),
        "cuda_problem": cuda_problem(),
        "allocation_problems": {
            str(index): text for index in devices() if (text := allocation_problem(index))
        },
    }


def devices() -> range:
    """Return the indices of the GPUs that CUDA uses."""
    import torch

    return range(torch.cuda.device_count() if torch.cuda.is_available() else 0)


def cuda_problem() -> str:
    """Start CUDA; return the problem, empty if there is none or if torch was built without CUDA."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return ""
    try:
        torch.cuda.current_device()
    except Exception as error:
        return str(error).partition("\n")[0]
    return ""


def allocation_problem(index: int) -> str:
    """Add two numbers on one GPU."""
    import torch

    try:
        total = float((torch.ones(2, device=f"cuda:{index}")).sum())
    except Exception as error:
        return str(error).partition("\n")[0]
    return "" if total == 2.0 else f"it adds 1 and 1 to {total:g}"


def of_jax() -> dict[str, object]:
    """Return version, back end, number and kinds of this node's devices."""
    try:
        import jax
    except Exception as error:
        return {"import_problem": f"{type(error).__name__}: {error}"}
    try:
        found = jax.local_devices()
        total = float(jax.numpy.ones(2).sum())
    except Exception as error:
        return {"version": jax.__version__, "device_problem": str(error).partition("\n")[0]}
    problem = "" if total == 2.0 else f"a device adds 1 and 1 to {total:g}"
    return {
        "version": jax.__version__,
        "backend": found[0].platform,
        "devices": len(found),
        "kinds": [f"{device.id}: {device.device_kind}" for device in found],
        "device_problem": problem,
    }


main()
