"""A job on one node: checked, started once all nodes are ready, supervised until nothing of it is left."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from platform_launch.console import Console, print_line
from platform_launch.dist_launch import job_records
from platform_launch.dist_launch.agent_protocol import AgentInput
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.job_records import MARKER, JobRecord
from platform_launch.errors import InputError
from platform_launch.hardware import cgroup, running
from platform_launch.supervise.processes import Command, shell_code
from platform_launch.supervise.watch import Watch
from platform_launch.text import Phrase, counted, joined

# Between the first node's readiness and the last one's.
_GO_S = 120.0
# The broker sends ``beat`` every five seconds.
_SILENT_S = 30.0
_LOST_GRACE_S = 10.0


class JobSupervisor:
    """Runs one job: ``check`` first, then ``run``.

    The order has the job and its run, script, arguments and directory, variables to add, the number of bytes
    of the archive that follows, and the grace period.
    """

    def __init__(self, folder: WaitFolder, order: dict[str, Any], orders: AgentInput) -> None:
        self._folder = folder
        self._orders = orders
        self._name: str = order["name"]
        self._run: str = order["run"]
        self._script = Path(order["script"])
        self._directory = Path(order["directory"])
        self._arguments: list[str] = order["arguments"]
        self._variables: dict[str, str] = order["variables"]
        self._grace_s: float = order["grace_s"]
        self._archive_bytes: int = order["archive_bytes"]
        self._interpreter: list[str] = order["interpreter"]
        self._code = 0
        self._owner = folder.owner()
        self._wait_ends = False
        self._watch = Watch(
            grace_s=self._grace_s,
            what=Phrase("the job"),
            report=Console().report,
            ended=self._on_end,
            ending=self._on_ending,
        )

    def check(self) -> None:
        """Check that the job can start here. Raises InputError if it cannot."""
        left = list(job_records.processes(self._folder, self._name, job_records.records(self._folder)))
        if left:
            pids = joined(f"{process.pid} ({process.command[:40]})" for process in left[:4])
            raise InputError(
                Phrase(
                    "job {name!r} still has {processes} here: {pids}; dist-launch kill ends them",
                    name=self._name,
                    processes=counted(len(left), "process"),
                    pids=pids,
                )
            )
        job_records.forget(self._folder, self._name)
        if problems := self._folder.hindrances():
            raise InputError(joined(problems, "; "))
        self._environment = self._folder.read_environment()
        if self._archive_bytes:
            self._unpack()
        if not self._directory.is_dir():
            raise InputError(
                Phrase(
                    ("there is no folder {directory} on this node: --copy copies the script's folder"),
                    directory=self._directory,
                )
            )
        if not self._script.is_file():
            raise InputError(
                Phrase(
                    "there is no {script} on this node: --copy copies the script and its folder",
                    script=self._script,
                )
            )

    def run(self) -> int:
        """Run the job once the broker sends ``go``; return its exit code as a shell would."""
        if self._orders.line(_GO_S) != "go":
            return 0
        # With our own process id: containers of one machine may share their control group.
        group = _enter_group(f"dist-launch-{self._name}-{self._run}-{os.getpid()}")
        argv = (*self._interpreter, str(self._script), *self._arguments)
        environment = {
            **self._environment,
            **self._variables,
            MARKER: job_records.marker(self._folder, self._name, self._run),
        }
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            with self._watch:
                pid = self._watch.start(Command(argv, environment, self._directory), {0: nothing})
                if group is not None:
                    _move(group.parent)
                self._record(pid, argv, group)
                Thread(target=self._listen, name="orders", daemon=True).start()
                self._watch.wait()
        finally:
            job_records.forget(self._folder, self._name)
            if group is not None:
                with suppress(OSError):
                    group.rmdir()
        # A job that saves and exits with 0 because its node is taken away has not finished.
        return self._code or (shell_code(-signal.SIGTERM) if self._wait_ends else 0)

    def _unpack(self) -> None:
        """Replace the previous copy with this one."""
        data = self._orders.exactly(self._archive_bytes)
        if data is None:
            raise InputError("the copy broke off")
        target = self._folder.copies / self._name
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(mode=0o700, parents=True)
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(target, filter="data")
                else:  # Python before 3.10.12: the archive is rank 0's own, which runs commands here anyway
                    archive.extractall(target)  # noqa: S202
        except (OSError, tarfile.TarError) as error:
            raise InputError(
                Phrase("the copy cannot be unpacked in {target}: {problem}", target=target, problem=error)
            ) from error
        self._script, self._directory = target / self._script.name, target

    def _record(self, pid: int, argv: tuple[str, ...], group: Path | None) -> None:
        leader, command = running.find(os.getpid()), running.find(pid)
        record = JobRecord(
            name=self._name,
            run=self._run,
            command=shlex.join(argv),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            leader=os.getpid(),
            leader_started=leader.started if leader else 0,
            session=pid,
            session_started=command.started if command else 0,
            group=str(group or ""),
            grace_s=self._grace_s,
        )
        try:
            job_records.write(self._folder, record)
        except OSError as error:
            print_line(
                "WARN",
                Phrase(
                    "no record of this job: {problem}; dist-launch status will not show it", problem=error
                ),
            )

    def _listen(self) -> None:
        """Follow rank 0, which writes every few seconds, and check that this node's ``wait`` is alive."""
        while (line := self._orders.line(_SILENT_S)) is not None:
            word, _, seconds = line.partition(" ")
            if word == "stop":
                self._watch.stop("told by rank 0", float(seconds))
            elif self._folder.owner() != self._owner:  # it was killed, so it could not signal anyone
                self._wait_ends = True
                self._watch.stop(Phrase("this node's dist-launch wait is gone"))
        self._watch.stop("the connection to rank 0 was lost", min(self._grace_s, _LOST_GRACE_S))

    def _on_ending(self, reason: str) -> None:
        if reason == signal.SIGTERM.name and self._folder.ending.exists():
            self._wait_ends = True
            print_line("WARN", "this node's dist-launch wait was asked to stop: stopping its job")

    def _on_end(self, _pid: int, code: int) -> None:
        self._code = shell_code(code)


def _enter_group(name: str) -> Path | None:
    """Enter a new control group, so that the command starts in it; None if that is not allowed."""
    own = cgroup.own_folder(Path("/sys"), Path("/proc"))
    if own is None:
        return None
    group = own / name
    try:
        group.mkdir()
        _move(group)
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    return group


def _move(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
