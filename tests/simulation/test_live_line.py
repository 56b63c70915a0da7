"""Progress bars of several nodes on one terminal: one moves, and finished lines go above it."""

from __future__ import annotations

import os

from platform_launch.console.outlet import Outlet
from platform_launch.simulation.nodes import LiveLine, NodeLines
from platform_launch.supervise.text import RedrawnLines


def test_a_bar_is_parted_from_finished_lines_wherever_a_chunk_ends() -> None:
    bars = RedrawnLines()
    assert bars.feed(b"one\ntw") == (b"one\n", None)
    assert bars.feed(b"o\n\r 1%") == (b"two\n", b" 1%")
    assert bars.feed(b"\r 50") == (b"", b" 50")
    assert bars.feed(b"%") == (b"", b" 50%")
    assert bars.feed(b"\r100%\r\nthree") == (b"100%\n", b"")
    assert bars.finish() == b"three\n"


def test_one_bar_moves_and_lines_of_all_nodes_go_above_it() -> None:
    reading, writing = os.pipe()
    outlet = Outlet(writing, lambda _error: None)
    live = LiveLine(outlet)
    nodes = [NodeLines(outlet, f"node {rank}", None, live) for rank in range(2)]
    nodes[0].feed(b"\r[node 0] 10%")
    nodes[1].feed(b"\r[node 1] 90%")
    nodes[1].feed(b"\n[node 1] done\n")
    nodes[0].feed(b"\r[node 0] 20%\n")
    outlet.close()
    os.close(writing)
    erase = "\r\x1b[K"
    assert os.read(reading, 65536).decode() == (
        f"{erase}[node 0] 10%{erase}[node 1] 90%\n[node 1] done\n[node 0] 10%{erase}[node 0] 20%\n"
    )
    os.close(reading)


def test_lines_of_the_launcher_break_between_words_and_those_of_the_training_do_not() -> None:
    reading, writing = os.pipe()
    outlet = Outlet(writing, lambda _error: None)
    node = NodeLines(outlet, "node 0", None, LiveLine(outlet))
    node.feed(
        b"[node 0] 12:00:00 [WARN] " + b"words " * 30 + b"[log-lost]\n[node 0] " + b"mine " * 40 + b"\n"
    )
    outlet.close()
    os.close(writing)
    *own, training = os.read(reading, 65536).decode().splitlines()
    os.close(reading)
    assert len(own) > 1
    assert "log-lost" not in own[-1]
    assert all(line.removesuffix("words") != line and len(line.split("\x1b[0m")[-1]) < 81 for line in own)
    assert training == "[node 0] " + "mine " * 40
