"""The protocol between the broker and an agent, over the agent's stdin and stdout.

The broker writes a line of JSON (the order), possibly the bytes of an archive, then commands, one per line:
``go``, ``beat``, ``stop SECONDS``. The agent answers with one marked line of JSON; anything that a login
shell prints before it is ignored. After that, its stdout and stderr belong to the job.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import time
from typing import Any

from platform_launch import helper
from platform_launch.dist_launch import answer_json
from platform_launch.dist_launch.cluster import ClusterMember

_MOST_BYTES = 64 * 1024


def agent_command(member: ClusterMember) -> str:
    """Return the shell command that starts the agent on a node."""
    return shlex.join(helper.command("dist-launch-node", python=member.python, package=member.package))


def order_line(member: ClusterMember, what: str, values: dict[str, Any]) -> bytes:
    """Return the line that tells an agent what to do."""
    return json.dumps({"do": what, "folder": member.folder, **values}).encode() + b"\n"


def answer_line(token: str, values: dict[str, Any]) -> bytes:
    """Return an agent's answer. ``token`` was given with the order."""
    return f"\n\x1e{token} {answer_json.dumps(values)}\n".encode()


class AnswerReader:
    """Finds the answer in an agent's stdout. ``answer`` is None until it has arrived."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._mark = f"\n\x1e{token} ".encode()
        self._held = b""
        self.answer: dict[str, Any] | None = None

    def feed(self, data: bytes) -> bytes:
        """Process output; return the part of it that follows the answer."""
        if self.answer is not None:
            return data
        self._held += data
        begin = self._held.find(self._mark)
        end = self._held.find(b"\n", begin + len(self._mark)) if begin >= 0 else -1
        if end < 0:
            if begin < 0:
                self._held = self._held[-_MOST_BYTES:]
            return b""
        self.answer = answer_json.loads(self._held[begin + len(self._mark) : end])
        rest, self._held = self._held[end + 1 :], b""
        return rest

    @property
    def noise(self) -> str:
        """The output that arrived instead of an answer."""
        return self._held.decode(errors="replace").strip()[-300:]


class AgentInput:
    """Reads the broker's input from a descriptor, with its own buffer, because lines and bytes alternate."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = b""

    def line(self, limit_s: float) -> str | None:
        """Return the next line without its end; None if the broker has disconnected or been silent for
        ``limit_s``.
        """
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._held:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0] or not self._read():
                return None
        line, _, self._held = self._held.partition(b"\n")
        return line.decode(errors="surrogateescape")

    def exactly(self, count: int) -> bytes | None:
        """Return ``count`` bytes; None if the broker disconnects before that."""
        while len(self._held) < count:
            if not self._read():
                return None
        data, self._held = self._held[:count], self._held[count:]
        return data

    def _read(self) -> bool:
        data = os.read(self._fd, _MOST_BYTES)
        self._held += data
        return bool(data)
