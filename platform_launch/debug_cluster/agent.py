"""What the broker starts on a node: ``python agent.py``, one order on stdin, one answer, perhaps a job.

Started by path, since the nodes may run a checkout that is not installed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = __file__.rsplit("/", 3)[0]

from platform_launch.debug_cluster.folder import Folder
from platform_launch.debug_cluster.lines import Orders, answer_line

_ORDER_S = 60.0


def main() -> int:
    """Do as ordered; the exit code is the job's."""
    orders = Orders(0)
    line = orders.line(_ORDER_S)
    if line is None:
        return 1
    order = json.loads(line)
    os.umask(0o077)
    folder = Folder(Path(order["folder"]))
    if order["do"] == "run":
        return _run(folder, order, orders)
    _answer(order, _report(folder, order))
    return 0


def _run(folder: Folder, order: dict[str, Any], orders: Orders) -> int:
    from platform_launch.debug_cluster.leader import Leader, Refused

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of a connection shows at stdin
    leader = Leader(folder, order, orders)
    try:
        leader.check()
    except Refused as refusal:
        _answer(order, {"refused": str(refusal)})
        return 0
    _answer(order, {})
    return leader.run()


def _report(folder: Folder, order: dict[str, Any]) -> dict[str, Any]:
    if order["do"] == "kill":
        from platform_launch.debug_cluster.sweep import sweep

        return sweep(folder, order["name"], order["grace_s"], force=order["force"])
    from platform_launch.debug_cluster.report import report

    return report(folder)


def _answer(order: dict[str, Any], values: dict[str, Any]) -> None:
    os.write(1, answer_line(order["token"], values))


if __name__ == "__main__":
    sys.exit(main())
