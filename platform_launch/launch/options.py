"""The user's options for the rendezvous and the monitoring of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Signals for ranks whose node will be reclaimed. They need not stop anything.
NO_NOTICE = "none"
NOTICE_SIGNALS = ("SIGUSR1", "SIGUSR2", NO_NOTICE)

# Ranks as the platform gave them, or so that nodes below one switch follow each other.
BY_NETWORK = "topology"
RANK_ORDERS = ("platform", BY_NETWORK)


@dataclass(frozen=True)
class TogetherFlags:
    """The flags for the rendezvous and the monitoring of a run.

    ``on_hang`` is the action after ``hang_after_s`` without progress (0: hangs are not detected).
    ``health_interval_s`` is the interval between health checks of GPUs and ports (0: only after a failure).
    ``quarantine`` is the file of nodes that must not be used. ``metrics`` is where Prometheus metrics are
    served: an address of this node and a port (0: a free one). ``no_trainjob_status`` leaves the status of a
    Kubeflow TrainJob to the training. ``notice_signal`` is one of :data:`NOTICE_SIGNALS`. ``verbose`` prints
    everything that is logged. ``rank_order`` is one of :data:`RANK_ORDERS`; node 0's applies.
    """

    no_roll_call: bool
    roll_call_timeout_s: float
    node_timeout_s: float
    max_restarts: int
    on_hang: str
    hang_after_s: float
    health_interval_s: float
    quarantine: Path | None
    metrics: tuple[str, int] | None
    no_trainjob_status: bool
    notice_signal: str = NOTICE_SIGNALS[0]
    verbose: bool = False
    rank_order: str = "platform"
