"""What a user may say about how the nodes of a job meet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# What ranks are sent when their node will be taken away: signals that need not end anything.
NO_NOTICE = "none"
NOTICE_SIGNALS = ("SIGUSR1", "SIGUSR2", NO_NOTICE)

# Ranks as the platform gave them, or so that nodes below one switch follow each other.
BY_NETWORK = "topology"
RANK_ORDERS = ("platform", BY_NETWORK)


@dataclass(frozen=True)
class TogetherFlags:
    """How the nodes of a job meet and stay together, as given by flags.

    ``on_hang`` is what follows when nothing moves any more for ``hang_after_s``; 0 looks for no hang.
    ``health_interval_s`` is how often GPUs and ports are asked how they are; 0: only after a failure.
    ``quarantine`` is the file of nodes that no job should be put on. ``metrics`` is where Prometheus may ask:
    an address of this node and a port (0: a free one). ``no_trainjob_status`` leaves the status of a Kubeflow
    TrainJob to the training. ``notice_signal`` is one of :data:`NOTICE_SIGNALS`. ``verbose`` shows on the
    screen what the log has. ``rank_order`` is one of :data:`RANK_ORDERS`, and node 0's counts.
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
