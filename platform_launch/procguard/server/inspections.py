"""Pending questions to agents, which the answers to heartbeats carry. For the event loop only."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from platform_launch.procguard.api.ranks import WorkerName
from platform_launch.procguard.api.wire import RanksSeen

Answers = Mapping[WorkerName, RanksSeen]


@dataclass
class _Question:
    """A question to some workers, and the answers so far."""

    token: str
    waits_for: set[WorkerName]
    answers: dict[WorkerName, RanksSeen] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Inspections:
    """All pending questions. Concurrent requests for the same one share its answers."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[int, _Question]] = {}
        self._under_way: dict[Hashable, asyncio.Task[Answers]] = {}

    def of(self, node: str) -> dict[int, str]:
        """Return the questions to a node's workers, by number."""
        return {number: question.token for number, question in self._by_node.get(node, {}).items()}

    async def ask(self, what: Hashable, workers: Sequence[WorkerName], limit_s: float) -> Answers:
        """Return the answers that arrive in time; ``what`` identifies the question."""
        task = self._under_way.get(what)
        if task is None:
            task = self._under_way[what] = asyncio.create_task(self._collected(workers, limit_s))
            task.add_done_callback(lambda _: self._under_way.pop(what))
        return await asyncio.shield(task)

    def answer(self, worker: WorkerName, seen: RanksSeen) -> bool:
        """Store an answer; False if nobody waits for it any more."""
        question = self._by_node.get(worker.node, {}).get(worker.number)
        if question is None or question.token != seen.question:
            return False
        question.answers[worker] = seen
        self._end(worker, question)
        if not question.waits_for:
            question.complete.set()
        return True

    async def _collected(self, workers: Sequence[WorkerName], limit_s: float) -> Answers:
        question = _Question(secrets.token_hex(8), set(workers))
        for worker in workers:
            self._by_node.setdefault(worker.node, {})[worker.number] = question
        if workers:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(question.complete.wait(), limit_s)
        for worker in list(question.waits_for):
            self._end(worker, question)
        return question.answers

    def _end(self, worker: WorkerName, question: _Question) -> None:
        question.waits_for.discard(worker)
        on_node = self._by_node.get(worker.node, {})
        if on_node.get(worker.number) is question:
            del on_node[worker.number]
        if not on_node:
            self._by_node.pop(worker.node, None)
