"""How long a training gets to end when another node has failed."""

from __future__ import annotations

# All nodes have stopped three seconds after a failure; to hear of it takes up to one.
_GRACE_S = 1.5
# To write flight recorders out takes seconds, more where all nodes share one; what they would tell
# of the failure is lost with the process.
_GPU_GRACE_S = 15.0


def stop_grace_s(gpus: int) -> float:
    """Return the seconds between SIGTERM and SIGKILL on a node with so many GPUs."""
    return _GPU_GRACE_S if gpus else _GRACE_S
