"""Node 0 leads the meeting: it says what comes next, and goes on without whoever does not answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from platform_launch.doctor.cluster import pairing
from platform_launch.doctor.cluster.board import Board
from platform_launch.doctor.cluster.document import Document, Outcome, Seat, Task
from platform_launch.doctor.cluster.pairing import Group

# Beyond what a node may take for a stage, for the way of its answer.
MARGIN_S = 10.0
CONNECT_LIMIT_S = 5.0
_LEAVE_LIMIT_S = 10.0
_LARGEST_WHOLE = 64  # nodes that try one collective all together


def longest_s(task: Task) -> float:
    """Return how long a meeting may take: every stage to its limit."""
    rounds_s = pairing.ROUNDS * (task.collective_limit_s + MARGIN_S)
    return task.meet_limit_s + connect_limit_s(task.nnodes) + MARGIN_S + rounds_s + MARGIN_S


def connect_limit_s(nnodes: int) -> float:
    """Return how long a node may take to try all others, a few hundred at a time."""
    return CONNECT_LIMIT_S * (2 + nnodes / 256)


class Director:
    """Leads one meeting from a thread of node 0's part."""

    def __init__(self, board: Board, task: Task) -> None:
        self._board = board
        self._task = task
        self._seats: dict[int, Seat] = {}
        self._silent: set[int] = set()
        self._gaps: set[tuple[int, int]] = set()
        self._outcomes: list[Outcome] = []
        self._round = 0

    def lead(self) -> None:
        """Lead from the first arrival to the last farewell."""
        everyone = range(self._task.nnodes)
        came = self._board.collect([f"here/{rank}" for rank in everyone], self._task.meet_limit_s)
        self._seats = {rank: Seat(**came[f"here/{rank}"]) for rank in everyone if f"here/{rank}" in came}
        self._board.put("roster", {rank: asdict(seat) for rank, seat in self._seats.items()})
        answers = self._hear("reach", connect_limit_s(len(self._seats)) + MARGIN_S)
        reach = {
            rank: {int(other): said for other, said in a["nodes"].items()} for rank, a in answers.items()
        }
        self._gaps = {(a, b) for a, found in reach.items() for b in found}
        self._measure(self._connected())
        self._board.put(f"round/{self._round}", [])
        document = Document(
            seats=self._seats,
            absent=tuple(rank for rank in everyone if rank not in self._seats),
            duplicates=self._duplicates(),
            silent=tuple(sorted(self._silent)),
            reach=reach,
            master_port={rank: a["master_port"] for rank, a in answers.items() if a["master_port"]},
            outcomes=tuple(self._outcomes),
        )
        self._board.put("document", document.to_json())
        self._see_off()

    def _hear(self, key: str, limit_s: float) -> dict[int, dict[str, Any]]:
        """Collect an answer of every node that still answers."""
        ranks = [rank for rank in self._seats if rank not in self._silent]
        found = self._board.collect([f"{key}/{rank}" for rank in ranks], limit_s)
        self._silent |= {rank for rank in ranks if f"{key}/{rank}" not in found}
        return {rank: found[f"{key}/{rank}"] for rank in ranks if f"{key}/{rank}" in found}

    def _connected(self) -> list[int]:
        """Return the nodes that can meet at least one other: of the rest, the matrix says all."""
        ranks = [rank for rank in self._seats if rank not in self._silent]
        return [rank for rank in ranks if any(o != rank and self._can_meet((rank, o)) for o in ranks)]

    def _measure(self, ranks: Sequence[int]) -> None:
        self._run(pairing.first(ranks))
        self._run(pairing.second(ranks, self._outcomes))
        self._run(pairing.third(ranks))
        if 2 < len(ranks) <= _LARGEST_WHOLE and not any(outcome.problem for outcome in self._outcomes):
            self._run([tuple(ranks)])

    def _run(self, groups: Sequence[Group]) -> None:
        """Let groups run their collective at the same time, those whose members reach each other."""
        groups = [group for group in groups if self._can_meet(group)]
        if not groups:
            return
        self._board.put(f"round/{self._round}", groups)
        keys = {rank: f"result/{self._round}/{rank}" for group in groups for rank in group}
        found = self._board.collect(keys.values(), self._task.collective_limit_s + MARGIN_S)
        for group in groups:
            silent = tuple(rank for rank in group if keys[rank] not in found)
            self._silent |= set(silent)
            self._outcomes.append(_joined(group, silent, [found[keys[r]] for r in group if r not in silent]))
        self._round += 1

    def _can_meet(self, group: Group) -> bool:
        pairs = {(a, b) for a in group for b in group}
        return not self._silent.intersection(group) and not pairs & self._gaps

    def _duplicates(self) -> dict[int, str]:
        found = self._board.collect([f"duplicate/{rank}" for rank in self._seats], 0)
        return {int(key.rpartition("/")[2]): str(host) for key, host in found.items()}

    def _see_off(self) -> None:
        """Keep the store until the others have read the document."""
        expected = len(self._seats) - len(self._silent)
        deadline = time.monotonic() + _LEAVE_LIMIT_S
        while self._board.count("left", 0) < expected and time.monotonic() < deadline:
            time.sleep(0.02)


def _joined(group: Group, silent: Group, answers: Sequence[dict[str, Any]]) -> Outcome:
    """Make one outcome of what the members of a group say."""
    problems = [str(answer["problem"]) for answer in answers if answer["problem"]]
    if silent:
        problems.append(f"no answer of {', '.join(f'node {rank}' for rank in silent)}")
    if problems:
        wrong = any(answer.get("wrong") for answer in answers)
        return Outcome(group, problem=problems[0], wrong=wrong, silent=silent)
    return Outcome(
        group,
        latency_us=max(answer["latency_us"] for answer in answers),
        bandwidth_gbps=min(answer["bandwidth_gbps"] for answer in answers),
    )
