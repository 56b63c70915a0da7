"""Runs a command on each of several hosts over OpenSSH, in parallel, and stops them together."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from platform_launch.dist_launch.nodes_output import NodesOutput
from platform_launch.dist_launch.openssh import ssh_command
from platform_launch.dist_launch.programs import NodeProgram, start_here
from platform_launch.dist_launch.run_ending import run_ending
from platform_launch.errors import InstallationError
from platform_launch.events import Event
from platform_launch.text import Phrase

# The launchers of a job stop together by themselves and report why; after this time the rest is stopped.
_TOGETHER_S = 10.0
# ssh(1): its exit code if it could not reach a host, or lost the connection.
_SSH_FAILED = 255


def run_on_hosts(commands: Mapping[str, str], folder: Path) -> tuple[int, Event]:
    """Run a shell command on each host until all have ended.

    Returns the first exit code that is not 0, and the last line for the user.

    Main thread only. Raises InstallationError without OpenSSH's client.
    """
    return asyncio.run(_HostsRun(commands, folder).run())


class _HostsRun:
    def __init__(self, commands: Mapping[str, str], folder: Path) -> None:
        self._hosts: Sequence[str] = list(commands)
        self._commands = commands
        self._folder = folder
        self._programs: dict[int, NodeProgram] = {}
        self._running = set(range(len(self._hosts)))
        self._code = 0
        self._first_failed: str | None = None
        self._stopping = False

    async def run(self) -> tuple[int, Event]:
        loop = asyncio.get_running_loop()
        names = dict(enumerate(self._hosts))
        self._output = NodesOutput((1, 2), names, fold=False, logs={}, names=names)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt, 128 + number)
        began = time.monotonic()
        try:
            await asyncio.gather(*map(self._one, names))
        except FileNotFoundError as error:
            raise InstallationError(
                "--start: there is no ssh on PATH", "install openssh-client, or start the commands yourself"
            ) from error
        finally:
            await self._output.close()
        took_s = time.monotonic() - began
        nodes = len(self._hosts)
        return self._code, run_ending(self._code, nodes, nodes, took_s, self._first_failed or "")

    async def _one(self, number: int) -> None:
        host = self._hosts[number]
        argv = ssh_command(host, self._folder, self._commands[host])
        program = await start_here(argv, lambda data, is_stderr: self._output.feed(number, data, is_stderr))
        self._programs[number] = program
        self._output.comes_from(number, program)
        if self._stopping:  # a signal arrived during the start
            program.close()
        code = await program.done
        self._running.discard(number)
        self._output.finish(number)
        if code and not self._stopping:
            self._failed(host, code)

    def _failed(self, host: str, code: int) -> None:
        """Record the first failure, and stop the others."""
        if self._first_failed is not None:
            return
        self._first_failed, self._code = host, code
        ssh = Phrase(" (ssh itself, see above)") if code == _SSH_FAILED else ""
        self._output.print(
            "ERROR", Phrase("{host}: ended with exit code {code}{ssh}", host=host, code=code, ssh=ssh)
        )
        if self._running:
            wait_s = 0.0 if code == _SSH_FAILED else _TOGETHER_S
            asyncio.get_running_loop().call_later(wait_s, self._stop)

    def _interrupt(self, code: int) -> None:
        """Ask all to stop; on the second call, do not wait for them any longer."""
        if self._stopping:
            self._output.print(
                "WARN", "no longer waiting for the hosts; their processes have been asked to stop"
            )
            for number in self._running & self._programs.keys():
                self._programs[number].abort()
            return
        self._output.print("INFO", "asking all hosts to stop; again: do not wait for them")
        self._code = self._code or code
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for number in self._running & self._programs.keys():
            self._programs[number].close()
