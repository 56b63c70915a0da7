"""A node's training among the others': roll call, hand-off, fail together, and start again.

This joins two rooms that do not know each other: ``supervise`` runs the training, ``rollcall`` holds the
meeting, in a process of its own that is spoken to over pipes (``link``).
"""

from __future__ import annotations

from platform_launch.node.attempt import Training
from platform_launch.node.run import Meeting, Result, run_together, tell

__all__ = ["Meeting", "Result", "Training", "run_together", "tell"]
