"""The helper process that stands in a run's rendezvous for its launcher: torch is too large for the launcher.

It reads a RunTask and further messages on stdin and writes its own on stdout (``launcher``). It ends with the
run, or with its launcher.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import NoReturn

from platform_launch.errors import LaunchError
from platform_launch.helper import MessageOutlet
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.first_failure import last_words
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.run.launcher import HelperAlive, LauncherAlive, RunTask, fault
from platform_launch.rendezvous.run.own_launcher import OwnLauncher
from platform_launch.rendezvous.run.silence import SILENT_S
from platform_launch.rendezvous.run.taking_part import TakingPart
from platform_launch.rendezvous.store import load_torch
from platform_launch.rendezvous.verdict import RunRefusal

_TAIL_BYTES = 4096
_LOOK_S = 1.0
_ALIVE_EVERY_S = 1.0
# A launcher that was stopped, and is let go on when the run is over, needs a moment to end by itself.
_ROUSE_S = 10.0


def main(_arguments: Sequence[str]) -> NoReturn:
    """Take part in one run."""
    # The launcher decides when this ends; its own end shows at stdin. Slurm without cgroups signals every
    # process of a step, not only its tasks.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    outlet = MessageOutlet()

    def emit(message: Message) -> None:
        outlet.send(encode(message))

    try:
        _take_part(decode(sys.stdin.buffer.readline().rstrip(), RunTask), emit)
    except LaunchError as error:
        emit(RunRefusal(error.exit_code, error.message, error.hint, untold=True))
    except Exception as error:  # the launcher says what follows from it
        emit(fault(error))
        os._exit(1)
    # Threads may be stuck inside torch, which nothing but the end of the process helps.
    os._exit(0)


def _take_part(task: RunTask, emit: Callable[[Message], None]) -> None:
    launcher, its_pid = OwnLauncher(), os.getppid()
    me = replace(task.node, facts={**task.node.facts, **_torch_facts()})
    commands: Queue[Message | None] = Queue()
    secret = Secret(task.secret) if task.secret else None
    taking_part = TakingPart(task, me, secret, launcher, commands, emit)
    Thread(target=_listen, args=(commands, launcher, emit), name="launcher", daemon=True).start()
    Thread(target=_give_signs_of_life, args=(launcher, emit), name="alive", daemon=True).start()
    log = Path(task.log_path)
    Thread(target=_read_along, args=(launcher, log), name="excerpt", daemon=True).start()
    try:
        taking_part.run()
    finally:
        if launcher.silent_s >= SILENT_S:
            _rouse(its_pid, commands)


def _give_signs_of_life(launcher: OwnLauncher, emit: Callable[[Message], None]) -> None:
    """Let the launcher know that this process lives, while it reads."""
    while True:
        if launcher.silent_s < SILENT_S:
            emit(HelperAlive())
        time.sleep(_ALIVE_EVERY_S)


def _rouse(launcher: int, commands: Queue[Message | None]) -> None:
    """End a launcher that was stopped or is stuck, now that the run is over: it would stay for ever."""
    for number in (signal.SIGCONT, signal.SIGKILL):
        if os.getppid() != launcher:  # gone: the id may be another's by now
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(launcher, number)
        deadline = time.monotonic() + _ROUSE_S
        with suppress(Empty):
            while time.monotonic() < deadline:
                if commands.get(timeout=max(0.0, deadline - time.monotonic())) is None:
                    return


def _listen(commands: Queue[Message | None], launcher: OwnLauncher, emit: Callable[[Message], None]) -> None:
    """Queue what the launcher says, and None when it is gone; its signs of life queue up for nobody.

    What cannot be read ends this process: the launcher goes on with another one.
    """
    try:
        for line in sys.stdin.buffer:
            message = decode(line.rstrip(), Message)
            if isinstance(message, LauncherAlive):
                launcher.receive(message)
            else:
                commands.put(message)
    except InvalidMessageError as error:
        emit(fault(error))
        os._exit(1)
    commands.put(None)


def _read_along(launcher: OwnLauncher, log: Path) -> None:
    """Keep the last lines of the training at hand: a node that vanishes cannot say them any more.

    In a thread of its own, since a log on a network file system can hang.
    """
    size = -1
    while True:
        try:
            if log.stat().st_size != size:
                with log.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - _TAIL_BYTES))
                    launcher.excerpt = last_words(file.read().decode(errors="replace"))
        except OSError:
            pass  # no log yet, or it was given up: a convenience
        time.sleep(_LOOK_S)


def _torch_facts() -> dict[str, str]:
    """Load torch, which training will import too, and return what its build says of itself.

    Raises InstallationError.
    """
    torch = load_torch(bare=True)
    version = str(torch.version.__version__)
    facts = {
        "torch": version,
        "torch release": ".".join(version.split(".")[:2]),
        "CUDA of torch": str(torch.version.cuda),
    }
    if torch.version.cuda:
        number = torch._C._nccl_version()  # packed, as torch.cuda.nccl.version unpacks it
        facts["NCCL"] = f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}"
    return facts
