"""Logs of runs on disk: appended as agents send them, kept within a limit, read in windows."""

from __future__ import annotations

from platform_launch.procguard.server.logs.reading import Reader
from platform_launch.procguard.server.logs.store import Full, Logs

__all__ = ["Full", "Logs", "Reader"]
