"""One node's part in the meeting. Run as a script with a Task; prints a Document, or why there is none.

It imports torch, so it is a process of its own; whatever hangs in it ends with it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from threading import Thread

if __name__ == "__main__":  # started by path: this folder must not shadow modules, the package must be found
    sys.path[0] = __file__.rsplit("/", 4)[0]

from platform_launch.doctor.cluster import matrix
from platform_launch.doctor.cluster.board import Board, SilenceError
from platform_launch.doctor.cluster.director import (
    CONNECT_LIMIT_S,
    MARGIN_S,
    Director,
    connect_limit_s,
    longest_s,
)
from platform_launch.doctor.cluster.document import Seat, Task
from platform_launch.doctor.cluster.measure import take_part
from platform_launch.hardware import ports

_LOOK_S = 0.5


class MeetingError(Exception):
    """This node could not take part; the message says how far it got."""


def main() -> None:
    """Take part, and print the outcome on what was stdout; what libraries print goes to stderr."""
    outlet = os.dup(1)
    os.dup2(2, 1)
    part = Part(Task.from_json(sys.argv[1]))
    answer: list[dict[str, str]] = []
    thread = Thread(target=lambda: answer.append(part.take()), name="part", daemon=True)
    thread.start()
    launcher, deadline = os.getppid(), time.monotonic() + longest_s(part.task)
    while thread.is_alive() and time.monotonic() < deadline and os.getppid() == launcher:
        thread.join(_LOOK_S)
    if not answer:  # inside torch, cut off: nothing but the end of the process helps
        answer.append({"failure": f"node 0 does not answer any more, {part.stage}"})
    os.write(outlet, json.dumps(answer[0], ensure_ascii=False).encode())
    os._exit(0)


class Part:
    """What this node does, stage after stage. ``stage`` says where it is."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stage = "before the meeting"

    def take(self) -> dict[str, str]:
        """Return ``{"document": …}`` or ``{"failure": …}``."""
        try:
            return {"document": self._meet()}
        except (MeetingError, SilenceError, RuntimeError, OSError) as error:
            return {"failure": str(error).partition("\n")[0]}

    def _meet(self) -> str:
        task = self.task
        with ExitStack() as open_ports:
            port = open_ports.enter_context(matrix.listening())
            board = self._board(open_ports)
            seat = Seat(task.host, task.address, port)
            self._sit_down(board, seat)
            self.stage = "while the other nodes come"
            roster = board.take("roster", task.meet_limit_s + MARGIN_S, "who is there")
            seats = {int(rank): Seat(**found) for rank, found in roster.items()}
            self.stage = "while the nodes connect to each other"
            board.put(f"reach/{task.node_rank}", self._reach(seats))
            first = board.take("round/0", connect_limit_s(task.nnodes) + 2 * MARGIN_S, "the first pairing")
        self._measure(board, seats, first)
        self.stage = "at the end"
        text = str(board.take("document", MARGIN_S, "what came out"))
        board.count("left", 1)
        if task.node_rank == 0:
            self._director.join(MARGIN_S)
        return text

    def _board(self, open_ports: ExitStack) -> Board:
        """Open the store: node 0 hosts it, the others try until somebody listens."""
        task = self.task
        if task.node_rank == 0:
            with suppress(OSError):  # taken: a finding of node 0 alone, which names the owner
                open_ports.enter_context(matrix.listening(task.master_port))
            try:
                board = Board("127.0.0.1", task.meeting_port, hosting=True, limit_s=task.meet_limit_s)
            except RuntimeError as error:
                port = ports.look(task.meeting_port)
                raise MeetingError(f"port {port.number} is taken by {port.held_by()}") from error
            self._director = Thread(target=Director(board, task).lead, name="director", daemon=True)
            self._director.start()
            return Board("127.0.0.1", task.meeting_port, hosting=False, limit_s=task.meet_limit_s)
        deadline = time.monotonic() + task.meet_limit_s
        place = {0: (task.master_addr, task.meeting_port)}
        while reason := matrix.unreachable(place, CONNECT_LIMIT_S):
            if time.monotonic() > deadline:
                raise MeetingError(f"node 0 was not reached within {task.meet_limit_s:.0f} s: {reason[0]}")
            time.sleep(0.2)
        return Board(task.master_addr, task.meeting_port, hosting=False, limit_s=task.meet_limit_s)

    def _sit_down(self, board: Board, seat: Seat) -> None:
        """Take this rank's seat. Two nodes with one rank are one too many."""
        key = f"here/{self.task.node_rank}"
        sitting = board.put_first(key, asdict(seat))
        if sitting != asdict(seat):
            board.put(f"duplicate/{self.task.node_rank}", seat.host)
            raise MeetingError(
                f"rank {self.task.node_rank} is taken by {sitting['host']} ({sitting['address']}): "
                "two nodes have the same node rank"
            )

    def _reach(self, seats: dict[int, Seat]) -> dict[str, object]:
        """Try every other node on the port it listens on, and node 0 on MASTER_PORT too."""
        task = self.task
        others = {rank: (s.address, s.port) for rank, s in seats.items() if rank != task.node_rank}
        found = matrix.unreachable(others, CONNECT_LIMIT_S)
        master = matrix.unreachable({0: (task.master_addr, task.master_port)}, CONNECT_LIMIT_S)
        return {"nodes": found, "master_port": master.get(0, "")}

    def _measure(self, board: Board, seats: dict[int, Seat], groups: list[list[int]]) -> None:
        """Take part in the rounds until node 0 announces an empty one."""
        number, limit_s = 0, self.task.collective_limit_s + 2 * MARGIN_S
        while groups:
            for group in groups:
                if self.task.node_rank in group:
                    self.stage = f"in a collective of {', '.join(f'node {rank}' for rank in group)}"
                    result = take_part(board, self.task, number, tuple(group), seats)
                    board.put(f"result/{number}/{self.task.node_rank}", result)
            number += 1
            groups = board.take(f"round/{number}", limit_s, "the next pairing")


if __name__ == "__main__":
    main()
