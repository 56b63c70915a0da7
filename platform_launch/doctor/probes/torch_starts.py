"""Says whether torch can be imported, CUDA starts, and every GPU gives memory; prints one JSON object.

Run as a script, never imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Print the object; what libraries print goes to stderr."""
    signal.alarm(int(sys.argv[1]))  # whoever started this may be gone
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, b"\n" + json.dumps(facts()).encode())  # a line of its own, whatever was printed before
    os._exit(0)  # taking CUDA down may hang where starting it did


def facts() -> dict[str, object]:
    """Return what torch says of itself and of the GPUs."""
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
    """Return the indices of the GPUs that CUDA starts with."""
    import torch

    return range(torch.cuda.device_count() if torch.cuda.is_available() else 0)


def cuda_problem() -> str:
    """Start CUDA and return why it does not, empty when it does or when torch was built without it."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return ""
    try:
        torch.cuda.current_device()
    except Exception as error:
        return str(error).partition("\n")[0]
    return ""


def allocation_problem(index: int) -> str:
    """Let one GPU add two numbers."""
    import torch

    try:
        total = float((torch.ones(2, device=f"cuda:{index}")).sum())
    except Exception as error:
        return str(error).partition("\n")[0]
    return "" if total == 2.0 else f"it adds 1 and 1 to {total:g}"


main()
