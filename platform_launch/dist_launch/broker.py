"""Rank 0's broker: keeps the SSH connections and serves commands, over a Unix socket in ``wait``'s folder.

Its arguments are that folder and the private key. A command passes its stdout and stderr with its request, so
that output need not go through the command. While it waits, it can send exit codes of signals. When it closes
the socket, what it requested is stopped.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from platform_launch import sockets
from platform_launch.dist_launch import answer_json
from platform_launch.dist_launch.cluster import WaitingCluster, read_cluster
from platform_launch.dist_launch.connections import NodeConnections
from platform_launch.dist_launch.fan_out import ShellCommand, order_all
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.job_request import JobRequest
from platform_launch.dist_launch.job_run import JobRun
from platform_launch.dist_launch.peer import user_behind
from platform_launch.errors import LaunchError, UsageError
from platform_launch.text import Phrase

_MOST_BYTES = 16 * 1024 * 1024
_ASK_S = 20.0
_LAST_ANSWERS_S = 5.0
# In addition to the grace period that a kill gives a job.
_KILL_S = 30.0


class Broker:
    """Serves commands until it is asked to stop."""

    def __init__(self, folder: WaitFolder, key: Path) -> None:
        self._folder = folder
        self._key = key
        self._links: dict[Path, NodeConnections] = {}
        self._runs: dict[str, JobRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Listen until a signal asks it to stop; then stop everything that runs."""
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            loop.add_signal_handler(number, ending.set)
        with socket.socket(socket.AF_UNIX) as listening:
            os.chdir(self._folder.path)  # the path of a socket is limited to 107 bytes
            new = Path(f"{self._folder.socket.name}.new")
            new.unlink(missing_ok=True)
            listening.bind(str(new))
            listening.listen(16)
            listening.setblocking(False)
            new.replace(self._folder.socket.name)  # only now: a socket that does not listen refuses commands
            accepting = asyncio.ensure_future(self._accept(listening))
            await ending.wait()
            accepting.cancel()
        self._folder.socket.unlink(missing_ok=True)
        for run in list(self._runs.values()):
            run.stop_with_wait(128 + signal.SIGTERM)
        if self._tasks:
            longest_s = max((run.longest_end_s for run in self._runs.values()), default=_LAST_ANSWERS_S)
            await asyncio.wait(self._tasks, timeout=longest_s)
        for links in self._links.values():
            await links.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:
                if error.errno not in sockets.FOR_A_MOMENT:
                    raise
                await asyncio.sleep(sockets.PAUSE_S)
                continue
            if user_behind(connection) != os.geteuid():
                connection.close()  # nobody else can enter the folder, except root
                continue
            task = asyncio.ensure_future(self._serve_one(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, connection: socket.socket) -> None:
        """Handle a request with two descriptors, and answer with a line of JSON."""
        descriptors = await _receive_descriptors(connection)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_MOST_BYTES)
        try:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return  # the command ended before it sent a request
            try:
                answer = await self._do(json.loads(line), descriptors, reader)
            except Exception as error:  # whatever it is, the command waits for an answer
                known = error if isinstance(error, LaunchError) else _unforeseen(error)
                answer = {"error": known.message, "hint": known.hint, "exit_code": known.exit_code}
            writer.write(answer_json.dumps(answer).encode() + b"\n")
            with suppress(OSError):
                await writer.drain()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            writer.close()

    async def _do(
        self, request: dict[str, Any], descriptors: tuple[int, ...], reader: asyncio.StreamReader
    ) -> dict[str, Any]:
        cluster, links = self._reached(request["ssh"])
        what, nodes = request["do"], request.get("nodes")
        out, err = descriptors
        if what == "run":
            job = JobRequest(**request["job"])
            self._refuse_second(job)
            archive = Path(request["archive"]) if request["archive"] else None
            return await self._run(JobRun(job, archive, cluster, links, (out, err)), reader)
        if what == "plain":
            plain = ShellCommand(request["command"], cluster, nodes, links, (out, err))
            return await _until_done(plain, reader)
        if what == "kill":
            return await self._kill(request, cluster, links)
        if what == "verify":  # a kept connection proves nothing about a new one
            links = NodeConnections(Path(request["ssh"]["key"] or self._key))
        try:
            return await order_all(cluster, nodes, links, what, {}, _ASK_S)
        finally:
            if what == "verify":
                await links.close()

    def _reached(self, ssh: dict[str, Any]) -> tuple[WaitingCluster, NodeConnections]:
        """Return the current cluster, with the command's addresses, and the connections of its key."""
        cluster = read_cluster(self._folder.cluster_file)
        others = {name: ssh[name] for name in ("ssh_port", "ssh_user") if ssh[name] is not None}
        if others:
            members = tuple(replace(member, **others) for member in cluster.members)
            cluster = replace(cluster, members=members)
        key = Path(ssh["key"]) if ssh["key"] else self._key
        if key not in self._links:
            links = NodeConnections(key)
            links.load_key()
            self._links[key] = links
        return cluster, self._links[key]

    async def _run(self, run: JobRun, reader: asyncio.StreamReader) -> dict[str, Any]:
        self._runs[run.job.name] = run
        try:
            return await _until_done(run, reader)
        finally:
            del self._runs[run.job.name]

    def _refuse_second(self, job: JobRequest) -> None:
        if job.name in self._runs:
            other = self._runs[job.name].job
            raise UsageError(
                Phrase(
                    "job {name!r} runs already: {script}, started {stamp}",
                    name=job.name,
                    script=other.script,
                    stamp=other.stamp,
                ),
                "dist-launch kill stops it; --name OTHER runs a second job at the same time",
            )

    async def _kill(
        self, request: dict[str, Any], cluster: WaitingCluster, links: NodeConnections
    ) -> dict[str, Any]:
        """Stop jobs on all nodes: through their runs, and any of their processes that are left."""
        name, force = request["name"], request["force"]
        for job, run in self._runs.items():
            if name in (None, job):
                run.expect_the_end(128 + (signal.SIGKILL if force else signal.SIGTERM))
        values = {"name": name, "force": force, "grace_s": request["grace_s"]}
        return await order_all(cluster, None, links, "kill", values, request["grace_s"] + _KILL_S)


async def _until_done(work: JobRun | ShellCommand, reader: asyncio.StreamReader) -> dict[str, Any]:
    """Run something while listening to the command that requested it."""

    async def listen() -> None:
        while line := await reader.readline():
            work.interrupt(int(line))
        work.abandon()

    listening = asyncio.ensure_future(listen())
    try:
        return await work.run()
    finally:
        listening.cancel()


def _unforeseen(error: Exception) -> LaunchError:
    """Return the answer for an unexpected error here; its traceback is in the output of ``wait``."""
    traceback.print_exception(error)
    return LaunchError(
        Phrase(
            "rank 0's dist-launch wait cannot do this: {problem}", problem=f"{type(error).__name__}: {error}"
        ),
        Phrase("see its own output; dist-launch status shows which jobs run"),
    )


async def _receive_descriptors(connection: socket.socket) -> tuple[int, ...]:
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connection)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 2)
    return tuple(descriptors)


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal asks it to stop."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    # Connections create many objects that stay. Scanning them for garbage took a tenth of the time of 64
    # handshakes.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    folder, key = arguments
    asyncio.run(Broker(WaitFolder(Path(folder)), Path(key)).serve())
    return 0
