"""Sends the same order or command to many nodes at once; returns each node's answer, or why there is none."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from platform_launch.dist_launch.agent_protocol import AnswerReader, agent_command, order_line
from platform_launch.dist_launch.cluster import ClusterMember, WaitingCluster
from platform_launch.dist_launch.connections import NodeConnections
from platform_launch.dist_launch.nodes_output import NodesOutput
from platform_launch.dist_launch.programs import NodeProgram, NodeUnreachableError
from platform_launch.errors import NodesAbsentError
from platform_launch.text import Phrase


async def order_all(
    cluster: WaitingCluster,
    nodes: str | None,
    links: NodeConnections,
    what: str,
    values: dict[str, Any],
    limit_s: float,
) -> dict[str, Any]:
    """Send an order to every chosen node's agent. Return ``{"nodes": [...]}``: rank, and answer or problem.

    With ``verify``, rank 0 uses SSH to reach itself too, because SSH is what is verified.
    """
    members = cluster.chosen(nodes)
    by_ssh = what == "verify"

    async def order(member: ClusterMember) -> dict[str, Any]:
        here = member.rank == cluster.rank and not by_ssh
        try:
            answer = await asyncio.wait_for(_order(member, links, what, values, here=here), limit_s)
        except NodeUnreachableError as error:
            return {"rank": member.rank, "problem": error.problem}
        except asyncio.TimeoutError:
            return {"rank": member.rank, "problem": Phrase("no answer within {limit:g} s", limit=limit_s)}
        return {"rank": member.rank, "answer": answer}

    return {"nodes": await asyncio.gather(*map(order, members)), "exit_code": 0}


async def _order(
    member: ClusterMember, links: NodeConnections, what: str, values: dict[str, Any], *, here: bool
) -> dict[str, Any]:
    reader = AnswerReader(os.urandom(6).hex())
    complaints = bytearray()

    def feed(data: bytes, is_stderr: bool) -> None:
        if is_stderr:
            complaints.extend(data[:2000])
        else:
            reader.feed(data)

    program = await links.start(member, agent_command(member), feed, here=here)
    program.send(order_line(member, what, {"token": reader.token, **values}))
    try:
        code = await asyncio.shield(program.done)
    finally:
        program.close()
    if reader.answer is None:
        last_line = complaints.decode(errors="replace").strip().rpartition("\n")[2] or reader.noise
        raise NodeUnreachableError(
            Phrase("SSH works, but its agent ended with exit code {code}: {last}", code=code, last=last_line)
        )
    return reader.answer


class ShellCommand:
    """A command for the users' shells on many nodes, as ``ssh`` would run it: no job, no environment."""

    def __init__(
        self,
        command: str,
        cluster: WaitingCluster,
        nodes: str | None,
        links: NodeConnections,
        descriptors: tuple[int, int],
    ) -> None:
        self._command = command
        self._members = cluster.chosen(nodes)
        self._links = links
        self._programs: list[NodeProgram] = []
        self._output = NodesOutput(
            descriptors,
            [member.rank for member in self._members],
            fold=False,
            logs={},
        )

    async def run(self) -> dict[str, Any]:
        """Run it everywhere; return the first exit code that is not 0, by rank."""
        codes = await asyncio.gather(*map(self._one, self._members))
        await self._output.close()
        return {"exit_code": next((code for code in codes if code), 0)}

    def interrupt(self, _code: int) -> None:
        """Disconnect from the command: as with ssh, it notices when it reads or writes."""
        for program in self._programs:
            program.abort()

    def abandon(self) -> None:
        """Like ``interrupt``: nobody reads its output any more."""
        self._output.abandon()
        self.interrupt(0)

    async def _one(self, member: ClusterMember) -> int:
        try:
            program = await self._links.start(
                member,
                self._command,
                lambda data, is_stderr: self._output.feed(member.rank, data, is_stderr),
                here=False,
            )
            self._programs.append(program)
            self._output.comes_from(member.rank, program)
            program.close()
            code = await asyncio.shield(program.done)
        except NodeUnreachableError as error:
            self._output.print(
                "ERROR", Phrase("{place}: {problem}", place=member.place, problem=error.problem)
            )
            return NodesAbsentError.exit_code
        self._output.finish(member.rank)
        return code
