"""``procguard demo``: a server, four agents and a group that runs a job, all on this machine."""

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
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError
from platform_launch.extras import install_extra
from platform_launch.hardware import ports

_PREFIX = "procguard-demo-"


@click.command("demo")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the page (default: a free one).")
@click.option(
    "--command",
    "command_line",
    metavar="COMMAND",
    help="What the group runs (default: the torch example that trains on generated images).",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Folder for all files (default: a temporary one, removed at the end).",
)
def command(port: int | None, command_line: str | None, folder: Path | None) -> int:
    """Start a server, four agents and a group of four workers that runs a job, until Ctrl-C.

    Only this machine can connect. Nothing remains afterwards except --folder, if given.
    """
    with needs_procguard():
        from platform_launch.procguard.demo import Demo, run_demo, training_command
    if command_line is None and importlib.util.find_spec("torch") is None:
        raise InstallationError(
            "the demo needs torch, which is not installed",
            f"{install_extra('train')}, or pass --command with a program of your own",
        )
    env, console = Environment.of_this_process(), Console()
    with ExitStack() as stack:
        where = folder.absolute() if folder else stack.enter_context(_temporary())
        # Four processes share this machine: they are faster with one thread each.
        variables = {"OMP_NUM_THREADS": "1", **env.inherited()}
        demo = Demo(where, port or ports.free(), command_line or training_command(), variables)
        console.title("ProcGuard demo: a server, four agents and a group that runs a job")
        console.info(f"starting them; their logs are in {where}")

        def ready(password: str) -> None:
            console.success(f"open {demo.url} and log in as admin with the password {password}")
            console.info("stop the group, change its settings, kill a worker; Ctrl-C stops everything")

        return run_demo(demo, console.print, ready)


@contextmanager
def _temporary() -> Iterator[Path]:
    """Create a folder that is removed at the end. Folders of demos that were killed are removed now."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(left, fcntl.LOCK_NB):  # BlockingIOError: a running demo has it
            if left.stat().st_uid == os.geteuid() and any(left.iterdir()):  # empty: a demo just starts
                shutil.rmtree(left)
    made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with made as folder, _locked(Path(folder)):
        yield Path(folder)


@contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    """Hold a folder's lock, which the kernel releases if this process is killed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)
