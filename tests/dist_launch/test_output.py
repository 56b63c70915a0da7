"""The output of many nodes as one."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

from platform_launch.dist_launch.agent_protocol import AnswerReader, answer_line
from platform_launch.dist_launch.nodes_output import NodesOutput


def write(
    path: Path, talk: Callable[[NodesOutput], None], *, ranks: int = 4, fold: bool = False, read: bool = True
) -> list[str]:
    async def main() -> None:
        with path.open("wb") as file:
            output = NodesOutput((file.fileno(), file.fileno()), range(ranks), fold=fold, logs={})
            talk(output)
            for rank in range(ranks):
                output.finish(rank)
            await output.close()

    asyncio.run(main())
    return path.read_text().splitlines() if read else []


def test_lines_that_come_in_pieces_stay_whole(tmp_path: Path) -> None:
    def talk(output: NodesOutput) -> None:
        pieces = [(rank, f"node {rank} line {n}\n".encode()) for n in range(50) for rank in range(4)]
        left = {rank: b"".join(piece for owner, piece in pieces if owner == rank) for rank in range(4)}
        dice = random.Random(7)
        while any(left.values()):
            rank = dice.choice([rank for rank in left if left[rank]])
            size = dice.randrange(1, 30)
            output.feed(rank, left[rank][:size], False)
            left[rank] = left[rank][size:]

    lines = write(tmp_path / "out", talk)
    for rank in range(4):
        expected = [f"[rank-{rank}] node {rank} line {n}" for n in range(50)]
        assert [line for line in lines if line.startswith(f"[rank-{rank}]")] == expected
    assert len(lines) == 200


def test_a_last_line_without_an_end_is_not_lost(tmp_path: Path) -> None:
    assert write(tmp_path / "out", lambda output: output.feed(1, b"half", False)) == ["[rank-1] half"]


def test_what_all_nodes_say_is_said_once_and_in_order(tmp_path: Path) -> None:
    def talk(output: NodesOutput) -> None:
        for rank in (2, 0, 3, 1):
            output.feed(rank, b"epoch 1\nepoch 2\n", False)
        output.feed(1, b"alone\n", False)
        for rank in (0, 1):
            output.feed(rank, b"epoch 3\n", True)

    lines = write(tmp_path / "out", talk, fold=True)
    assert lines == ["[rank-0-3] epoch 1", "[rank-0-3] epoch 2", "[rank-1] alone", "[rank-0-1] epoch 3"]


def test_what_a_launcher_marks_with_its_node_is_marked_once_and_folded(tmp_path: Path) -> None:
    def talk(output: NodesOutput) -> None:
        for rank in range(4):
            output.feed(
                rank, f"[node {rank}] Step 1\n[node 9] odd\nprints [node {rank}] too\n".encode(), False
            )

    folded = write(tmp_path / "folded", talk, fold=True)
    assert folded[:2] == ["[rank-0-3] Step 1", "[rank-0-3] [node 9] odd"]
    assert folded[2:] == [f"[rank-{rank}] prints [node {rank}] too" for rank in range(4)]
    assert "[rank-2] Step 1" in write(tmp_path / "plain", talk)


def test_a_time_at_the_beginning_of_a_line_does_not_keep_it_from_being_folded(tmp_path: Path) -> None:
    def talk(output: NodesOutput) -> None:
        for rank in range(4):
            output.feed(
                rank, f"22:18:4{rank} [INFO] nodes: 4\n2026-11-22 22:18:47,{rank} step\n".encode(), False
            )

    lines = write(tmp_path / "out", talk, fold=True)
    assert lines == ["[rank-0-3] 22:18:40 [INFO] nodes: 4", "[rank-0-3] 2026-11-22 22:18:47,0 step"]


def test_a_node_that_repeats_itself_is_heard_each_time(tmp_path: Path) -> None:
    lines = write(tmp_path / "out", lambda output: output.feed(0, b"tick\ntick\n", False), fold=True)
    assert lines == ["[rank-0] tick", "[rank-0] tick"]


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_a_line_of_our_own_carries_the_time_in_a_file_and_none_on_a_terminal(tmp_path: Path) -> None:
    (line,) = write(tmp_path / "out", lambda output: output.print("ERROR", "rank-1 is\nlost"))
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[ERROR\] rank-1 is lost", line)
    controller, terminal = os.openpty()
    try:
        write(Path(os.ttyname(terminal)), lambda output: output.print("WARN", "killing"), read=False)
        assert os.read(controller, 99) == b"[WARN] killing\r\n"
    finally:
        os.close(controller)
        os.close(terminal)


class PausedProgram:
    """Stands for a program on a node, and notes when it is to pause and to go on."""

    def __init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.paused: list[bool] = []

    def send(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def throttle(self, slow: bool) -> None:
        self.paused.append(slow)


def test_a_slow_reader_stops_the_nodes_and_loses_nothing() -> None:
    async def main() -> tuple[dict[str, list[bool]], bytes]:
        reading, writing = os.pipe()
        output = NodesOutput((writing, writing), range(3), fold=False, logs={})
        os.close(writing)
        programs = {name: PausedProgram() for name in ("running", "ended", "late")}
        output.comes_from(0, programs["running"])
        output.comes_from(1, programs["ended"])
        output.finish(1)
        for _ in range(300):
            output.feed(0, b"x" * 9999 + b"\n", False)
        output.comes_from(2, programs["late"])
        loop = asyncio.get_running_loop()
        closing = asyncio.ensure_future(output.close())
        received = await loop.run_in_executor(None, read_all, reading)
        await closing
        return {name: program.paused for name, program in programs.items()}, received

    paused, received = asyncio.run(main())
    assert paused == {"running": [True, False], "ended": [], "late": [True, False]}
    assert received == (b"[rank-0] " + b"x" * 9999 + b"\n") * 300


def test_what_a_login_shell_prints_is_no_answer() -> None:
    reader = AnswerReader("token")
    assert reader.feed(b"Welcome!\n\x1e{}\n") == b""
    data = answer_line("token", {"a": 1}) + b"output"
    assert reader.feed(data[:9]) == b""
    assert reader.feed(data[9:]) == b"output"
    assert reader.answer == {"a": 1}
    assert reader.feed(b"more") == b"more"
