"""A real PostgreSQL of its own: made in a folder, on a free port of the loopback, gone after.

@requires_postgres
def test_it(postgres_server: Postgres) -> None:
    url = postgres_server.new_database()
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests.lab.needs import Need
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S, until

_ACCOUNT = "postgres"  # the server refuses to run as root


@dataclass
class Postgres:
    """A running server. ``folder`` holds its data, its socket and its log."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    numbers: Iterator[int] = field(default_factory=count)

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"test{next(self.numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return f"postgresql://{_ACCOUNT}@127.0.0.1:{self.port}/{name}"

    def sql(self, command: str) -> str:
        """Run a command as the server's owner and return what it prints."""
        done = subprocess.run(
            [
                self.programs / "psql",
                "-h",
                self.folder,
                "-p",
                str(self.port),
                "-U",
                _ACCOUNT,
                "-Atqc",
                command,
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options: list[str | Path] = [
            "-c",
            f"unix_socket_directories={self.folder}",
            "-c",
            "listen_addresses=127.0.0.1",
        ]
        options += ["-c", "fsync=off", "-c", "max_connections=40", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                **_as_owner(),
            )
        ready: list[str | Path] = [
            self.programs / "pg_isready",
            "-q",
            "-h",
            self.folder,
            f"--port={self.port}",
        ]

        def said() -> str:
            return f"PostgreSQL does not answer: {(self.folder / 'log').read_text(errors='replace')}"

        def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, said()
            return subprocess.run(ready, check=False, timeout=LIMIT_S).returncode == 0

        until(answers, said, pause_s=0.05)

    def stop(self) -> None:
        """Stop the server at once, with every connection to it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)  # "fast shutdown"
        try:
            process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(timeout=LIMIT_S)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server for as long as the block lasts."""
    programs = _programs()
    assert programs is not None
    with (
        reserved_port() as port,
        tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)  # short: a socket's path may have 107 characters
        if os.geteuid() == 0:
            shutil.chown(folder, _ACCOUNT)
        done = subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-U", _ACCOUNT, "-Atrust", "-N", "-EUTF8"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            **_as_owner(),
        )
        assert done.returncode == 0, done.stderr
        server = Postgres(programs, folder, port)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _as_owner() -> dict[str, Any]:
    return {"user": _ACCOUNT, "group": _ACCOUNT, "extra_groups": []} if os.geteuid() == 0 else {}


@cache
def _programs() -> Path | None:
    """Return the folder of the newest version's programs: Debian keeps them out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


@cache
def why_no_postgres() -> str:
    """Return why this machine cannot run one, empty when it can."""
    if _programs() is None:
        return "needs PostgreSQL (Debian: postgresql) to run a server of its own"
    if importlib.util.find_spec("psycopg") is None:
        return "needs psycopg (the extra `postgres`) to speak to PostgreSQL"
    return ""


requires_postgres = Need("PostgreSQL", why_no_postgres).mark
