"""Free space on disks and in memory file systems, and locks that builds left there."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from platform_launch import files
from platform_launch.errors import HardwareError
from platform_launch.hardware.running import holders
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_GIB = 1024**3
# Files there have no size, and no other process may add to them.
_KERNELS = ("/proc", "/sys")


@dataclass(frozen=True)
class Storage:
    """The file system of a folder, also of one that does not exist yet.

    ``free_gib`` is what an ordinary user may still write. ``free_inodes`` is None if files are not counted.
    ``problem`` is why nothing can be written there, or empty.
    """

    folder: Path
    size_gib: float
    free_gib: float
    free_inodes: int | None
    problem: str = ""


def read(folder: Path) -> Storage:
    """Measure the file system of a folder, or of the nearest one above it that exists. Writes nothing."""
    existing = folder
    # os.path, because pathlib raises for folders that may not be searched
    while not os.path.exists(existing) and existing != existing.parent:  # noqa: PTH110
        existing = existing.parent
    problem = "" if existing.is_dir() else Phrase("{folder} is not a folder", folder=existing)
    numbers = os.statvfs(existing)
    if not problem and numbers.f_flag & os.ST_RDONLY:
        problem = Phrase("{folder} is mounted read-only", folder=existing)
    elif not problem and (kernel := _kernels(existing)):
        problem = Phrase("only the kernel can create files in {folder}", folder=kernel)
    elif not problem and not os.access(existing, os.W_OK | os.X_OK):
        problem = Phrase("{folder} is not writable", folder=existing)
    return Storage(
        folder,
        numbers.f_blocks * numbers.f_frsize / _GIB,
        numbers.f_bavail * numbers.f_frsize / _GIB,
        numbers.f_favail if numbers.f_files else None,
        problem,
    )


def _kernels(folder: Path) -> str:
    """Return which of the kernel's file systems a folder is on, empty if on none."""
    try:
        resolved = folder.resolve()
    except OSError:  # relative to a working folder that was removed
        return ""
    return next((one for one in _KERNELS if resolved.is_relative_to(one)), "")


def own_temporary_folder() -> tuple[Path, str]:
    """Return this user's folder for temporary files, and why it must not be used (empty if it may).

    It need not exist yet. Raises HardwareError as :func:`temporary_folder`.
    """
    folder = temporary_folder() / f"platform_launch_{os.getuid()}"
    return folder, files.private_problem(folder)


def temporary_folder() -> Path:
    """Return the folder for temporary files. Raises HardwareError when none can be written to."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise HardwareError(
            Phrase("no folder for temporary files is writable ({problem})", problem=error.strerror or error),
            "make one of them writable or free some space there, or name another folder with TMPDIR",
        ) from error


@dataclass(frozen=True)
class BuildLock:
    """``held``: a process that is visible from here has the file open."""

    path: Path
    age_s: float
    held: bool


def locks(extensions: Path) -> tuple[BuildLock, ...]:
    """Return the locks in a TORCH_EXTENSIONS_DIR: ``<op>/lock``, or one folder deeper by Python and CUDA."""
    found: list[Path] = []
    with suppress(OSError):  # not readable
        found = sorted({*extensions.glob("*/lock"), *extensions.glob("*/*/lock")})
    if not found:
        return ()
    opened = holders({str(path.resolve()) for path in found})
    now_s = time.time()
    made = []
    for path in found:
        with suppress(OSError):  # released meanwhile
            made.append(BuildLock(path, now_s - path.stat().st_mtime, str(path.resolve()) in opened))
    return tuple(made)
