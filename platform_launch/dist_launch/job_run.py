"""One run on all nodes: it starts once every node is ready, and the first failure stops the others."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from platform_launch.console.log import LogFile
from platform_launch.dist_launch.agent_protocol import AnswerReader, agent_command, order_line
from platform_launch.dist_launch.cluster import ClusterMember, WaitingCluster
from platform_launch.dist_launch.connections import NodeConnections
from platform_launch.dist_launch.job_request import JobRequest
from platform_launch.dist_launch.nodes_output import NodesOutput
from platform_launch.dist_launch.programs import NodeProgram, NodeUnreachableError
from platform_launch.errors import InputError, NodesAbsentError
from platform_launch.text import Phrase, joined

_READY_S = 60.0
_BEAT_S = 5.0
# In addition to a job's own grace period: its agent stops what is left and reports it.
_END_S = 15.0
_SAME_KEYPRESS_S = 0.3


@dataclass
class _JobPart:
    """The job on one node."""

    member: ClusterMember
    reader: AnswerReader
    program: NodeProgram | None = None
    code: int | None = None
    refusal: str = ""
    lost: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class JobRun:
    """Runs a job once. ``interrupt`` and ``stop`` may be called at any time in the same event loop."""

    def __init__(
        self,
        job: JobRequest,
        archive: Path | None,
        cluster: WaitingCluster,
        links: NodeConnections,
        descriptors: tuple[int, int],
    ) -> None:
        self.job = job
        self._archive = archive
        self.run_id = os.urandom(6).hex()
        self._here = cluster.rank
        self._nnodes = len(cluster.members)
        self._links = links
        self._parts = {
            member.rank: _JobPart(member, AnswerReader(self.run_id)) for member in cluster.chosen(job.nodes)
        }
        logs = {rank: self._log(rank) for rank in self._parts}
        self._output = NodesOutput(descriptors, self._parts, fold=job.fold, logs=logs, language=job.language)
        for log in logs.values():
            log.open()
        self._going = False
        self._stopping = asyncio.Event()
        self._code = 0
        self._failed_first: _JobPart | None = None
        self._interrupted_at = float("-inf")

    async def run(self) -> dict[str, Any]:
        """Run to the end; return the exit code, and the ending if it started.

        Raises LaunchError if the job cannot start.
        """
        beat = asyncio.ensure_future(self._beat())
        ending: dict[str, Any] | None = None
        try:
            await self._prepare()
            if not self._stopping.is_set():
                self._going = True
                if note := self.job.reminder_about_nodes(len(self._parts), self._nnodes):
                    self._output.print("INFO", note)
                began = time.monotonic()
                self._send("go", self._parts.values())
                await self._follow()
                first = self._failed_first.member.place if self._failed_first else ""
                ending = {
                    "exit_code": self._code,
                    "nodes": len(self._parts),
                    "nnodes": self._nnodes,
                    "duration_s": time.monotonic() - began,
                    "first_failed": first,
                }
        finally:
            beat.cancel()
            for part in self._parts.values():
                if part.program is not None:
                    part.program.close()
            await self._output.close()
        return {"exit_code": self._code, "ending": ending}

    def interrupt(self, code: int) -> None:
        """Stop the job on all nodes; kill it on the second call."""
        if self._interrupted_at + _SAME_KEYPRESS_S > time.monotonic():
            return  # `timeout -s INT` delivers one Ctrl-C twice
        self._interrupted_at = time.monotonic()
        if self._stopping.is_set():
            self._output.print("WARN", "killing the job on all nodes")
            self._stop_all(0.0)
            return
        self._output.print(
            "INFO",
            Phrase("stopping the job on all nodes, {grace:g} s at most; again: kill", grace=self.job.grace_s),
        )
        self.stop(code)

    @property
    def longest_end_s(self) -> float:
        """How long the job may take to stop everywhere, in seconds."""
        return self.job.grace_s + _END_S

    def stop_with_wait(self, code: int) -> None:
        """Stop the job on all nodes because rank 0's ``wait`` is asked to stop."""
        self._output.print(
            "WARN",
            Phrase(
                "dist-launch wait was asked to stop: stopping the job on all nodes, {grace:g} s at most",
                grace=self.job.grace_s,
            ),
        )
        self.stop(code)

    def stop(self, code: int) -> None:
        """Ask the job to stop everywhere; ``code`` is the run's exit code unless it already has one."""
        if not self._stopping.is_set():
            self._code = self._code or code
            self._stopping.set()
            self._stop_all(self.job.grace_s)

    def expect_the_end(self, code: int) -> None:
        """Expect the job to be killed: processes that end from now on are not failures."""
        self._code = self._code or code
        self._stopping.set()

    def abandon(self) -> None:
        """Stop the job, because the command that requested it has ended."""
        self._output.abandon()
        self.stop(129)

    async def _prepare(self) -> None:
        """Prepare every node up to ``go``. Raises a LaunchError that names those that failed."""
        archive = self._archive.read_bytes() if self._archive is not None else b""
        await asyncio.gather(*(self._open(part, archive) for part in self._parts.values()))
        unready = [part for part in self._parts.values() if part.lost or part.refusal]
        if unready and not self._stopping.is_set():
            reasons = joined(
                (
                    Phrase("{place}: {problem}", place=part.member.place, problem=part.lost or part.refusal)
                    for part in unready
                ),
                "; ",
            )
            family = NodesAbsentError if any(part.lost for part in unready) else InputError
            raise family(
                Phrase(
                    "job {job!r} was started nowhere: {count} of {nodes} nodes cannot run it: {reasons}",
                    job=self.job.name,
                    count=len(unready),
                    nodes=len(self._parts),
                    reasons=reasons,
                ),
                Phrase("dist-launch verify checks each node"),
            )

    async def _open(self, part: _JobPart, archive: bytes) -> None:
        rank, here = part.member.rank, part.member.rank == self._here

        def feed(data: bytes, is_stderr: bool) -> None:
            if not is_stderr and not part.ready.is_set():
                data = part.reader.feed(data)
                if part.reader.answer is not None:
                    part.ready.set()
            if data:
                self._output.feed(rank, data, is_stderr)

        try:
            part.program = await self._links.start(part.member, agent_command(part.member), feed, here=here)
        except NodeUnreachableError as error:
            part.lost = error.problem
            return
        order = {"token": self.run_id, "run": self.run_id, "archive_bytes": len(archive), **asdict(self.job)}
        part.program.send(order_line(part.member, "run", order) + archive)
        ready = asyncio.ensure_future(part.ready.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        waited: list[asyncio.Future[Any]] = [ready, stopping, part.program.done]
        await asyncio.wait(waited, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        stopping.cancel()
        self._output.comes_from(rank, part.program)  # only now: its answer must not wait for a slow reader
        if part.reader.answer is not None:
            part.refusal = part.reader.answer.get("refused", "")
        elif not self._stopping.is_set():
            part.lost = Phrase(
                "its agent did not start: {problem}", problem=part.reader.noise or Phrase("see above")
            )

    async def _follow(self) -> None:
        """Wait for all nodes; handle the first failure."""
        tasks = [asyncio.ensure_future(self._end_of(part)) for part in self._parts.values()]
        pending: set[asyncio.Task[None]] = set(tasks)
        given_up_at: float | None = None
        loop = asyncio.get_running_loop()
        while pending:
            stopping = asyncio.ensure_future(self._stopping.wait())
            limit_s = None if given_up_at is None else max(given_up_at - loop.time(), 0.0)
            watched: set[asyncio.Future[Any]] = (
                {*pending} if given_up_at is not None else {*pending, stopping}
            )
            done, _ = await asyncio.wait(watched, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            pending = {task for task in pending if not task.done()}
            if self._stopping.is_set() and given_up_at is None:
                given_up_at = loop.time() + self.longest_end_s
            elif given_up_at is not None and not done:
                self._give_up()
                break
        for task in pending:
            task.cancel()

    async def _end_of(self, part: _JobPart) -> None:
        assert part.program is not None
        rank, place = part.member.rank, part.member.place
        try:
            part.code = await asyncio.shield(part.program.done)
        except NodeUnreachableError as error:
            part.lost, part.code = error.problem, NodesAbsentError.exit_code
        self._output.finish(rank)
        if part.code == 0 or self._stopping.is_set():
            return
        how = part.lost or Phrase("ended with exit code {code}", code=part.code)
        self._code = self._code or part.code
        self._failed_first = self._failed_first or part
        running = sum(other.code is None for other in self._parts.values())
        if self.job.keep_going or not running:
            self._output.print("ERROR", Phrase("{place}: {how}", place=place, how=how))
            return
        others = Phrase("the other node") if running == 1 else Phrase("the other {count}", count=running)
        self._output.print(
            "ERROR", Phrase("{place}: {how}; stopping {others}", place=place, how=how, others=others)
        )
        self.stop(part.code)

    def _give_up(self) -> None:
        stuck = [part.member.place for part in self._parts.values() if part.code is None]
        self._code = self._code or NodesAbsentError.exit_code
        self._output.print(
            "ERROR",
            Phrase("did not end in time, dist-launch kill --force kills it: {nodes}", nodes=joined(stuck)),
        )

    def _stop_all(self, grace_s: float) -> None:
        if self._going:
            self._send(f"stop {grace_s:g}", [part for part in self._parts.values() if part.code is None])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._going:
                self._send("beat", [part for part in self._parts.values() if part.code is None])

    def _send(self, word: str, parts: Iterable[_JobPart]) -> None:
        for part in parts:
            if part.program is not None:
                part.program.send(f"{word}\n".encode())

    def _log(self, rank: int) -> LogFile:
        path = Path(self.job.log_folder) / f"train_{self.job.name}_node{rank}_{self.job.stamp}.log"
        return LogFile(path, lambda event: self._output.print(event.level, event))
