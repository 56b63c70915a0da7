"""Who left early, and who was told to: what torchrun's agent wrote, and when each rank ended."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from platform_launch.launch.exit_code import closing_signals
from platform_launch.observe.node_probe import NodeProbe

AGENT = "torch/distributed/elastic/multiprocessing/api.py:1010] Sending process"
NOW = datetime(2026, 11, 22, 12, 0, 30)
SENT = datetime(2026, 11, 22, 12, 0, 1, 500_000).timestamp()


# Beyond the highest that Linux gives out.
GONE = [2**22 + number for number in (1, 2, 3)]


def describe(folder: Path, rank: int, pid: int, at: float, *, finished: int = 1) -> None:
    """Leave what the hook leaves of a rank that has ended."""
    said = {"pid": pid, "rank": rank, "local_rank": rank, "main_thread": 1, "signal": 0}
    said |= {"look_signal": 0, "descriptor": -1}
    path = folder / f"{pid}.json"
    path.write_text(json.dumps({**said, "finished": finished}))
    os.utime(path, (at, at))


def test_agent_says_which_process_it_ends_and_when() -> None:
    tail = (
        f"[node 0] W1122 12:00:01.500000 77 {AGENT} 91 closing signal SIGTERM\r\n"
        f"[2026-11-22 12:00:02,000] torch: [WARNING] Sending process 92 closing signal SIGTERM\n"
        f"W1231 23:59:59.000000 77 {AGENT} 93 closing signal SIGTERM\n"
        f"W9999 99:99:99.000000 77 {AGENT} 94 closing signal SIGTERM\n"
    ).encode()
    new_year = datetime(2025, 12, 31, 23, 59, 59).timestamp()
    assert closing_signals(tail, NOW) == {91: SENT, 92: 0.0, 93: new_year, 94: 0.0}
    assert closing_signals(b"Sending process of shards", NOW) == {}


def test_who_ended_after_the_signal_did_not_leave_early(tmp_path: Path) -> None:
    for rank, at in enumerate((SENT - 0.2, SENT + 0.2, SENT + 0.2)):
        describe(tmp_path, rank, GONE[rank], at)
    probe = NodeProbe(tmp_path, 0, "gn6")
    assert probe.left(set(), {GONE[0]: SENT, GONE[1]: SENT}) == [0, 2]
    assert probe.left(set(), {GONE[0]: 0.0, GONE[1]: 0.0, GONE[2]: 0.0}) == []
    assert probe.left({0}, {GONE[1]: SENT}) == [2]
