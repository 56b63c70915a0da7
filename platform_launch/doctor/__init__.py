"""Checks before a launch: gathered facts become findings, each with a stable id.

    facts      the facts of one node                      gather    collects them, through hardware/
    checks/    facts → findings, one file per topic       quick     all fast checks: what every launch does
    finding    Finding, Level                             catalogue all ids
    deep       checks that need a child process           cluster/  checks that need all nodes

A check is a pure function. An error is a certain failure; anything that may still work is a warning.
"""

from __future__ import annotations

from platform_launch.doctor.finding import Finding, Level, refuse, worst
from platform_launch.doctor.quick import examine

__all__ = ["Finding", "Level", "examine", "refuse", "worst"]
