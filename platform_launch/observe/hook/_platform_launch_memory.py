"""Writes a rank's GPU allocations when it runs out of memory (--memory-snapshot).

Loaded once torch.cuda is imported, under the same rules as ``sitecustomize.py``: it never fails a script.
"""

import os
import sys
import time

# Each entry is a few KiB of this process's memory.
_MOST_ENTRIES = 100000
# A script may catch the error and retry many times.
_PAUSE_S = 60.0


def prepare(path):
    """Record allocations once CUDA is initialized, which this does not cause."""
    torch, cuda = sys.modules["torch"], sys.modules["torch.cuda"]
    last = [float("-inf")]

    def on_out_of_memory(*_sizes):
        if time.monotonic() - last[0] < _PAUSE_S:
            return
        last[0] = time.monotonic()
        try:
            cuda.memory._dump_snapshot(path + ".part")
            os.replace(path + ".part", path)
        except Exception:
            pass

    def record():
        try:
            cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES, stacks="python")
            torch._C._cuda_attach_out_of_memory_observer(on_out_of_memory)
        except Exception:  # a torch without it
            pass

    cuda._lazy_call(record)
