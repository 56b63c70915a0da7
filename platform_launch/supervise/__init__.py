"""Starts a job's commands on this node and supervises them; no other package does.

It imports neither torch nor anything that imports torch: this process must stay small.
"""

from __future__ import annotations

from platform_launch.supervise.capture import Answer, capture
from platform_launch.supervise.processes import Command
from platform_launch.supervise.supervisor import Outcome, Supervisor
from platform_launch.supervise.watch import DEFAULT_GRACE_S, Watch

__all__ = ["DEFAULT_GRACE_S", "Answer", "Command", "Outcome", "Supervisor", "Watch", "capture"]
