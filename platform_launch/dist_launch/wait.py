"""One node that waits: joins the others, lets rank 0 log in, and finally removes all that it added."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch import helper
from platform_launch.console import Console, print_line
from platform_launch.dist_launch import cluster_keys, job_end, sshd
from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.dist_launch.folder import WaitFolder, write_private
from platform_launch.dist_launch.node_access import uninstall
from platform_launch.dist_launch.wait_task import WaitTask
from platform_launch.errors import InputError, InstallationError, LaunchError, UsageError, shown
from platform_launch.rendezvous.messages import encode
from platform_launch.supervise.processes import Command
from platform_launch.supervise.watch import Watch
from platform_launch.text import Phrase

# Sessions of a private sshd stop their jobs.
_GRACE_S = 8.0
# If one of our processes ends sooner than this, it is not restarted, because it would fail again.
_SHORTEST_LIFE_S = 5.0


@dataclass(frozen=True)
class WaitSettings:
    """Settings of ``wait``. ``environment`` is what jobs on this node start with.

    ``key`` and ``public_key`` are for rank 0; without them it creates its own pair. On the others,
    ``named_key`` is the key that may log in; if empty, the first one that rank 0 brings.
    """

    rank: int
    nnodes: int
    job_id: str | None
    host: str
    address: str
    master_addr: str
    rendezvous_ports: tuple[int, ...]
    timeout_s: float
    cluster_file: Path
    ssh_port: int
    ssh_user: str
    sshd: bool
    key: Path | None
    public_key: Path | None
    named_key: str
    environment: Mapping[str, str]


def wait(settings: WaitSettings) -> int:
    """Wait until asked to stop; return the exit code: 0 after TERM, INT or QUIT. Main thread only.

    Raises LaunchError if this node cannot wait.
    """
    folder = WaitFolder.beside(settings.cluster_file)
    folder.check()
    owner = folder.owner()
    if owner is not None and owner != os.getpid():
        raise UsageError(
            Phrase("another dist-launch wait (pid {owner}) lives in {path}", owner=owner, path=folder.path),
            "stop it, or set another CLUSTER_INFO_FILE for this one",
        )
    os.umask(0o077)
    left_key = cluster_keys.left_behind(folder)
    uninstall(folder, settings.ssh_user)  # left by one that was killed
    folder.create()
    try:
        if left_key and settings.rank == 0:
            write_private(folder.key, left_key)
        folder.own()
        folder.write_environment(settings.environment)
        return _WaitProcesses(settings, folder).run()
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be written: {problem}", path=folder.path, problem=error.strerror or error)
        ) from error
    finally:
        for problem in uninstall(folder, settings.ssh_user):
            print_line("WARN", Phrase("could not be taken back: {problem}", problem=problem))


class _WaitProcesses:
    """The processes of one ``wait``: a private sshd, the rendezvous, and on rank 0 the broker."""

    def __init__(self, settings: WaitSettings, folder: WaitFolder) -> None:
        self._settings = settings
        self._folder = folder
        self._code = 0
        self._name_of: dict[int, str] = {}
        self._born: dict[int, float] = {}
        self._commands: dict[str, Command] = {}
        self._inputs: dict[str, str] = {}
        self._watch = Watch(
            grace_s=lambda: max(_GRACE_S, job_end.limit_s(folder)),
            what=self._what,
            report=Console().report,
            ended=self._on_end,
            ending=self._end_jobs,
        )

    def _what(self) -> Phrase:
        if job_end.limit_s(self._folder):
            return Phrase("this wait and the jobs that run on this node")
        return Phrase("this wait (no job runs on this node)")

    def run(self) -> int:
        """Start everything, and wait."""
        settings, folder = self._settings, self._folder
        pair = (
            cluster_keys.key_pair(folder, settings.key, settings.public_key) if settings.rank == 0 else None
        )
        with self._watch:
            host_key = self._open_ssh()
            member = self._present(host_key, pair)
            if host_key:
                self._await_sshd()  # a node that has joined can be reached
            self._join(member, pair, own_sshd=bool(host_key))
            if pair is not None:
                broker = helper.command("dist-launch-broker", str(folder.path), str(pair.private))
                self._start("broker", broker, "")
            self._watch.wait()
        return self._code

    def _present(self, host_key: str, pair: cluster_keys.ClusterKey | None) -> ClusterMember:
        """Return this node as a member for the others. Raises InputError for an invalid name."""
        settings, folder = self._settings, self._folder
        try:
            return ClusterMember(
                rank=settings.rank,
                host=settings.host,
                address=settings.address,
                ssh_port=settings.ssh_port,
                ssh_user=settings.ssh_user,
                host_key=host_key or asyncio.run(cluster_keys.host_key("127.0.0.1", settings.ssh_port)),
                identity=os.urandom(16).hex(),
                python=sys.executable,
                package=str(helper.PACKAGE),
                folder=str(folder.path),
                public_key=pair.public if pair else "",
            )
        except ValueError as error:
            raise InputError(
                Phrase(
                    "host {host}, address {address}, user {user}: {problem}",
                    host=shown(settings.host),
                    address=shown(settings.address),
                    user=shown(settings.ssh_user),
                    problem=error,
                )
            ) from error

    def _open_ssh(self) -> str:
        """Make sure that an SSH server answers; return the host key of a private one, or an empty text."""
        port, folder = self._settings.ssh_port, self._folder
        if sshd.answers(port, starting=not self._settings.sshd):
            if self._settings.sshd:
                print_line(
                    "INFO",
                    Phrase("an SSH server listens on port {port} already: --sshd starts none", port=port),
                )
            return ""
        if not self._settings.sshd:
            raise InstallationError(
                Phrase("no SSH server listens on port {port} of this node (SSH_PORT)", port=port),
                "pass --sshd to start a private one, or correct SSH_PORT",
            )
        argv, host_key = sshd.prepare(folder, port, self._settings.ssh_user)
        self._start("sshd", argv, "")
        return host_key

    def _await_sshd(self) -> None:
        port = self._settings.ssh_port
        if not sshd.await_listening(port):
            raise InstallationError(
                Phrase("sshd does not listen on port {port}; its own lines are above", port=port)
            )
        print_line("INFO", Phrase("started a private sshd on port {port}", port=port))

    def _join(self, member: ClusterMember, pair: cluster_keys.ClusterKey | None, *, own_sshd: bool) -> None:
        settings = self._settings
        task = WaitTask(
            member=member,
            nnodes=settings.nnodes,
            job_id=settings.job_id,
            master_addr=settings.master_addr,
            ports=settings.rendezvous_ports,
            timeout_s=settings.timeout_s,
            folder=str(self._folder.path),
            key=str(pair.private) if pair else "",
            own_sshd=own_sshd,
            named_key=settings.named_key,
        )
        self._start("rendezvous", helper.command("dist-launch-rendezvous"), encode(task).decode())

    def _start(self, name: str, argv: tuple[str, ...], text: str) -> None:
        """Start one of our processes with a line on its stdin."""
        self._commands[name] = Command(argv, self._settings.environment)
        self._inputs[name] = text
        self._again(name)

    def _again(self, name: str) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            os.write(writing, self._inputs[name].encode() + b"\n")
            pid = self._watch.start(self._commands[name], {0: reading})
        finally:
            os.close(reading)
            os.close(writing)
        self._name_of[pid], self._born[pid] = name, time.monotonic()

    def _end_jobs(self, _reason: str) -> None:
        """Let the jobs of this node stop gracefully, before the SSH server's sessions are closed."""
        if job_end.limit_s(self._folder):
            with suppress(OSError):
                self._folder.ending.touch(0o600)
            self._start("end", helper.command("dist-launch-end", str(self._folder.path)), "")

    def _on_end(self, pid: int, code: int) -> None:
        name, lived_s = self._name_of.pop(pid), time.monotonic() - self._born.pop(pid)
        if self._watch.stopped_by is not None or self._code:
            return
        if name == "rendezvous" and code > 0:
            self._code = code  # its last line has the reason
            self._watch.stop("there is no cluster")
        elif lived_s < _SHORTEST_LIFE_S:
            self._code = LaunchError.exit_code
            self._watch.stop(f"{name} ended by itself after {lived_s:.1f} s (exit code {code})")
        else:
            print_line(
                "WARN", Phrase("{name} ended (exit code {code}): starting it again", name=name, code=code)
            )
            with suppress(LaunchError):
                self._again(name)
