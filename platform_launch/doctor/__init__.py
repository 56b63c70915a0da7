"""Checks before a launch: facts that were gathered become findings, each with a stable id.

    facts      what was gathered of one node              gather    the gathering, through hardware/
    checks/    facts → findings, one file a topic         quick     all cheap checks: what every launch does
    finding    Finding, Level                             catalogue every id there is
    deep       what only a child process can try          cluster/  what only all nodes together can try

A check is a pure function. An error is a certain failure; whatever may still go well is a warning.
"""

from __future__ import annotations

from platform_launch.doctor.finding import Finding, Level, refuse, worst
from platform_launch.doctor.quick import examine

__all__ = ["Finding", "Level", "examine", "refuse", "worst"]
