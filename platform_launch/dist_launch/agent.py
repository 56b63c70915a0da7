"""What the broker starts on a node: reads one order from stdin, answers, and may run a job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from platform_launch.console import languages
from platform_launch.dist_launch.agent_protocol import AgentInput, answer_line
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.errors import InputError

_ORDER_S = 60.0


def main(_arguments: Sequence[str]) -> int:
    """Carry out the order; return the job's exit code."""
    orders = AgentInput(0)
    line = orders.line(_ORDER_S)
    if line is None:
        return 1
    order = json.loads(line)
    os.umask(0o077)
    folder = WaitFolder(Path(order["folder"]))
    if order["do"] == "run":
        return _run(folder, order, orders)
    _answer(order, _report(folder, order))
    return 0


def _run(folder: WaitFolder, order: dict[str, Any], orders: AgentInput) -> int:
    from platform_launch.dist_launch.job_supervisor import JobSupervisor

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # stdin ends when the connection does
    languages.choose(order["language"])
    leader = JobSupervisor(folder, order, orders)
    try:
        leader.check()
    except InputError as refusal:
        _answer(order, {"refused": refusal.message})
        return 0
    _answer(order, {})
    return leader.run()


def _report(folder: WaitFolder, order: dict[str, Any]) -> dict[str, Any]:
    if order["do"] == "kill":
        from platform_launch.dist_launch.job_end import sweep

        return sweep(folder, order["name"], order["grace_s"], force=order["force"])
    from platform_launch.dist_launch.node_report import report

    return report(folder)


def _answer(order: dict[str, Any], values: dict[str, Any]) -> None:
    os.write(1, answer_line(order["token"], values))
