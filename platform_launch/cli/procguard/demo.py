"""``procguard demo``: a server, four agents and a group that trains, all on this machine."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click

from platform_launch.cli import completion
from platform_launch.cli.procguard.extra import needs_procguard
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError
from platform_launch.extras import install_extra
from platform_launch.hardware import ports
from platform_launch.text import Phrase

_PREFIX = "procguard-demo-"


@click.command("demo")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the page (default: a free one).")
@click.option(
    "--command",
    "command_line",
    metavar="COMMAND",
    help="The group's command (default: the example that trains on generated images; it needs torch).",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Where to keep all files (default: a temporary folder, removed at the end).",
)
def command(port: int | None, command_line: str | None, folder: Path | None) -> int:
    """Start a server, four agents and a training group of four workers, until Ctrl-C.

    Only this machine can reach it. Nothing is left behind except --folder, if given.
    """
    with needs_procguard():
        from platform_launch.procguard.demo import Demo, run_demo, training_command
    if command_line is None and importlib.util.find_spec("torch") is None:
        raise InstallationError(
            "the demo trains with torch, which is not installed",
            Phrase("{install}, or pass your own program with --command", install=install_extra("train")),
        )
    env, console = Environment.of_this_process(), Console()
    with ExitStack() as stack:
        where = folder.absolute() if folder else stack.enter_context(_temporary())
        # Four processes share this machine: each is faster with one thread than with all of them.
        variables = {"OMP_NUM_THREADS": "1", **env.inherited()}
        demo = Demo(where, port or ports.free(), command_line or training_command(), variables)
        console.title(translate("ProcGuard demo: a server, four agents and a training group"))
        console.info(Phrase("starting them; their logs are in {folder}", folder=where))

        def ready(password: str) -> None:
            console.success(
                Phrase(
                    "open {url} and log in as admin with the password {password}",
                    url=demo.url,
                    password=password,
                )
            )
            console.info(
                "try to stop the group, change its settings or kill a worker; Ctrl-C ends everything"
            )

        return run_demo(demo, console.print, ready)


@contextmanager
def _temporary() -> Iterator[Path]:
    """Create a folder that is removed at the end, and remove those of demos that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), _held(left, fcntl.LOCK_NB):  # BlockingIOError: a running demo holds it
            if left.stat().st_uid == os.geteuid() and any(left.iterdir()):  # empty: just starting
                shutil.rmtree(left)
    made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with made as folder, _held(Path(folder)):
        yield Path(folder)


@contextmanager
def _held(folder: Path, how: int = 0) -> Iterator[None]:
    """Hold a lock on a folder; the kernel releases it if this process is killed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)
