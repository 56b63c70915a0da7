"""Programs that outlive the one that starts them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress

from platform_launch.errors import LaunchError
from platform_launch.text import Phrase


def start_detached(argv: tuple[str, ...], env: Mapping[str, str]) -> int:
    """Start a program in its own session, without input or output, and return its process id.

    It gets no signal when this process dies. ``argv[0]`` is a path. Raises LaunchError if it cannot start.
    """
    try:
        return os.posix_spawn(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ],
            setsid=True,
            setsigmask=(),
            # Python ignores the first two, and nohup makes programs ignore the third.
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LaunchError(
            Phrase("cannot start {program}: {reason}", program=argv[0], reason=reason)
        ) from error


def reap_detached(pids: Iterable[int]) -> set[int]:
    """Reap the children among these that have ended; return the others."""
    living = set()
    for pid in pids:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                living.add(pid)
    return living
