"""The private folder in which a training's processes answer: held by its launch, swept when that was killed.

A launch holds a lock of its folder, which the kernel lets go whatever ended it: unlike a process id, that
means the same in all containers that share a folder for temporary files, and is never given to another.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from platform_launch import files

# As ``cli/launch_options.py`` names them: when it was started, and its process.
_NAME = re.compile(r"observe-\d{8}-\d{6}-\d+")
_PURPOSE = "the training's processes will answer questions there"

_held: dict[Path, int] = {}


def open_folder(folder: Path) -> None:
    """Make the folder, empty, and hold it until :func:`remove_folder`, or the end of this process.

    Raises OSError, InputError.
    """
    _let_go(folder)
    while True:
        files.private_folder(folder, _PURPOSE)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks, on which nothing is swept
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Between making and holding it, another launch may have swept it.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.lstat()):
                break
        os.close(descriptor)
    _held[folder] = descriptor
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove the folder with what the training's processes left there."""
    shutil.rmtree(folder, ignore_errors=True)
    _let_go(folder)


def sweep(temporary: Path) -> None:
    """Remove the folders of launches that are no more from this user's folder for temporary files."""
    if files.private_problem(temporary):
        return
    with suppress(OSError):
        for folder in temporary.iterdir():
            if _NAME.fullmatch(folder.name) and folder not in _held and not files.private_problem(folder):
                with suppress(OSError), _alone(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone. Raises OSError where another holds it, or none can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _let_go(folder: Path) -> None:
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)
