"""The private folder of a ``wait``, next to CLUSTER_INFO_FILE, and files that only their owner may read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from platform_launch import files
from platform_launch.errors import InputError, shown
from platform_launch.text import Phrase

# Even a full disk has room for an empty file.
_PROBE_BYTES = 16 * 1024
_HINT = "look who made it; then remove it, or name another CLUSTER_INFO_FILE"


class WaitFolder:
    """``CLUSTER_INFO_FILE.d``: keys, SSH configuration, the captured environment, what runs here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster_file = path.with_name(path.name.removesuffix(".d"))
        self.wait_pid = path / "wait.pid"  # of the ``wait`` that owns the folder
        self.ending = path / "ending"  # exists once ``wait`` was asked to stop
        self.environment = path / "environment.json"  # the platform's, as ``wait`` saw it, and NCCL's
        self.key = path / "id_ed25519"  # the cluster's own private key, if the user gave none
        self.authorized_keys = path / "authorized_keys"  # who may log in to the private sshd
        self.sshd_config = path / "sshd_config"
        self.sshd_key = path / "ssh_host_ed25519_key"
        self.known_hosts = path / "known_hosts"  # the host keys that the nodes joined with
        self.ssh_config = path / "ssh_config"  # the aliases rank-0, rank-1, …
        self.socket = path / "broker"  # where rank 0's broker listens
        self.jobs = path / "jobs"  # one file for each job that runs on this node
        self.copies = path / "copies"  # what ``run --copy`` copied
        self.trusted_key = path / "trusted_key"  # the public key that may log in here, once decided

    @classmethod
    def beside(cls, cluster_file: Path) -> WaitFolder:
        """Return the folder that belongs to a cluster information file."""
        return cls(cluster_file.with_name(f"{cluster_file.name}.d"))

    def check(self) -> None:
        """Check that nobody else can have created the content of the folder. Raises InputError."""
        if problem := files.private_problem(self.path):
            raise InputError(Phrase("{path} is not used: {problem}", path=self.path, problem=problem), _HINT)

    def create(self) -> None:
        """Create the folder for its owner only. Raises InputError if it belongs to somebody else."""
        if not str(self.path).isprintable() or any(sign in str(self.path) for sign in '"%\\'):
            raise InputError(
                Phrase(
                    "CLUSTER_INFO_FILE={file} is written to SSH configurations, whose paths cannot "
                    "contain quotes, percent signs, backslashes or line breaks",
                    file=shown(str(self.cluster_file)),
                ),
                "name another file",
            )
        files.private_folder(self.path, "it will hold keys", _HINT)
        try:
            self.jobs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(
                Phrase("{path} cannot be created: {problem}", path=self.path, problem=error.strerror)
            ) from error

    def write_environment(self, variables: Mapping[str, str]) -> None:
        """Write the variables that jobs on this node start with. Raises OSError."""
        write_private(self.environment, json.dumps(dict(variables)))

    def read_environment(self) -> dict[str, str]:
        """Read :meth:`write_environment`. Raises OSError, ValueError."""
        values: dict[str, str] = json.loads(self.environment.read_text(encoding="utf-8"))
        return values

    def own(self) -> None:
        """Register this process as the ``wait`` that owns the folder. Raises OSError."""
        from platform_launch.hardware import running

        me = running.find(os.getpid())
        write_private(self.wait_pid, f"{os.getpid()} {me.started if me else 0}\n")

    def owner(self) -> int | None:
        """Return the process id of the ``wait`` that owns the folder, None if it has ended."""
        try:
            pid, started = map(int, self.wait_pid.read_text().split())
        except (OSError, ValueError):
            return None
        from platform_launch.hardware import running  # costs 15 ms, which a mere query should not pay

        return None if running.find(pid, started=started) is None else pid

    def hindrances(self) -> list[str]:
        """Return why no job can run on this node: ``verify`` reports it, and ``run`` refuses to start."""
        found = list[str]()
        if self.owner() is None:
            found.append(Phrase("its dist-launch wait has ended: start it again"))
        try:
            self.read_environment()
        except (OSError, ValueError) as error:
            found.append(Phrase("the variables that wait captured cannot be read: {problem}", problem=error))
        probe = self.path / "probe"
        try:
            write_private(probe, "x" * _PROBE_BYTES)
            probe.unlink()
        except OSError as error:
            found.append(
                Phrase("{path} cannot be written: {problem}", path=self.path, problem=error.strerror)
            )
        return found


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, with mode 0600. Raises OSError."""
    files.write_whole(path, text, mode=files.PRIVATE)


def read_private(path: Path) -> str:
    """Read a file that only this user can have written. Raises OSError (PermissionError: another's file)."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, encoding="utf-8") as file:
        if problem := files.file_problem(os.fstat(handle), files.OTHERS_MAY_CHANGE):
            raise PermissionError(1, problem, str(path))
        return file.read()
