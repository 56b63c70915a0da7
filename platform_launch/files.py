"""Atomic writes, new files, private folders, YAML, and cached values that are computed from files."""

from __future__ import annotations

import errno
import marshal
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from platform_launch.errors import InputError
from platform_launch.text import Phrase, one_line

# Mode of a launch's files (logs, records, events): for its owner and group, minus the umask.
SHARED = 0o640
PRIVATE = 0o600
# Permissions that others must not have: to change a file or folder, or also to read a secret. A group may
# read one, because Kubernetes mounts Secrets for a user like that.
OTHERS_MAY_CHANGE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_MAY_READ = stat.S_IWGRP | stat.S_IRWXO


class NotYamlError(ValueError):
    """A text is not YAML. ``problem`` is the reader's exception."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


def yaml_values(data: str | bytes) -> Any:
    """Parse a YAML text, with libyaml if PyYAML has it: several times as fast. Raises NotYamlError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(data, Loader=loader)  # noqa: S506 - both loaders are the safe ones
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NotYamlError(error) from error


def made_of(module: Path, files: Sequence[Path], make: Callable[[], Any]) -> Any:
    """Return the result of ``make`` for files of this package: numbers, texts, tuples, lists, dictionaries.

    The result is cached next to the compiled ``module``, if Python caches any, until the content of a file
    changes. (Times would not do: some installers give all files of all versions the same one.) Anyone who may
    write there could change this package anyway.
    """
    content = [file.read_bytes() for file in files]
    try:
        kept = Path(cache_from_source(str(module))).with_suffix(".made")
    except NotImplementedError:  # the interpreter caches nothing
        return make()
    with suppress(OSError, EOFError, ValueError, TypeError):
        of, made = marshal.loads(kept.read_bytes())  # noqa: S302 - see above
        if of == content:
            return made
    made = make()
    if not sys.dont_write_bytecode:
        with suppress(OSError, ValueError):  # of the latter: a date, which cannot be kept
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, marshal.dumps((content, made)))
    return made


def not_yaml(source: object, error: Exception) -> str:
    """Return the line in which a text is not YAML, and why, from the reader's exception."""
    mark = getattr(error, "problem_mark", None)
    line = Phrase(", line {line}", line=mark.line + 1) if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    return Phrase(
        "{source}{line} is not YAML: {problem}", source=source, line=line, problem=one_line(str(problem))
    )


def write_whole(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write a file atomically, replacing any existing one. Raises OSError.

    ``mode`` is that of a new file, minus the umask; None keeps the mode of the replaced file.
    """
    with _written_beside(path, content, mode) as new:
        if mode is None:
            with suppress(FileNotFoundError):
                new.chmod(stat.S_IMODE(path.stat().st_mode))
        new.replace(path)


def write_new(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write a file that must not exist yet, atomically. Raises FileExistsError, OSError."""
    with _written_beside(path, content, mode) as new:
        os.link(new, path)  # unlike a rename, this refuses to replace


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; a single write may stop early because of a signal or a full disk.

    Raises OSError.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def create_new(paths: Iterable[Path]) -> tuple[int, Path]:
    """Create the first of these files that does not exist; return its descriptor and its path.

    It is open for appending. Processes that call this at the same time get different files. Raises
    FileExistsError if all exist, OSError if none can be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    path = None
    for path in paths:
        with suppress(FileExistsError):
            return os.open(path, flags, SHARED), path
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def foreign_problem(found: os.stat_result, forbidden: int) -> str:
    """Return why a file or folder is not private to this user or root; empty if it is.

    ``forbidden`` is OTHERS_MAY_CHANGE or OTHERS_MAY_READ.
    """
    if found.st_uid not in (os.geteuid(), 0):
        return Phrase("it belongs to user {uid}", uid=found.st_uid)
    if found.st_mode & forbidden:
        what = Phrase("read or change" if forbidden == OTHERS_MAY_READ else "change")
        return Phrase("others may {what} it (mode {mode:04o})", what=what, mode=stat.S_IMODE(found.st_mode))
    return ""


def file_problem(found: os.stat_result, forbidden: int) -> str:
    """Return why an open file is not a regular file that is private to this user or root; empty if it is."""
    return (
        foreign_problem(found, forbidden)
        if stat.S_ISREG(found.st_mode)
        else Phrase("it is not a regular file")
    )


def private_problem(path: Path) -> str:
    """Return why a folder is not private to this user; empty if it is, or does not exist yet.

    Others must not be able to put anything into it, or to replace it.
    """
    try:
        above = path.parent.lstat()
        if not above.st_mode & stat.S_ISVTX and above.st_mode & stat.S_IWOTH:
            return Phrase("anyone can replace it in {folder}", folder=path.parent)
        found = path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISLNK(found.st_mode):
        return Phrase("it is a symbolic link")
    if not stat.S_ISDIR(found.st_mode):
        return Phrase("it is not a folder")
    if (
        found.st_uid != os.geteuid()
    ):  # one that belongs to root is not usable, because it could not be written
        return Phrase("it belongs to user {uid}", uid=found.st_uid)
    return foreign_problem(found, OTHERS_MAY_CHANGE)


def private_folder(path: Path, purpose: str, hint: str = "") -> Path:
    """Create a private folder (mode 0700), or accept one that is certainly ours; return it.

    ``purpose`` explains in an error what it is for: ``it will hold keys``. Raises InputError.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        problem = private_problem(path)
        if not problem:
            path.chmod(0o700)
            return path
    except OSError as error:
        raise InputError(
            Phrase(
                "{path} cannot be created: {problem}: {purpose}",
                path=path,
                problem=error.strerror,
                purpose=purpose,
            ),
            hint,
        ) from error
    raise InputError(
        Phrase(
            "{path} is not a folder of this user alone: {problem}; {purpose}",
            path=path,
            problem=problem,
            purpose=purpose,
        ),
        hint or "remove it, or name another folder",
    )


@contextmanager
def _written_beside(path: Path, content: str | bytes, mode: int | None) -> Iterator[Path]:
    """Yield a new file with the content in the same folder; remove it afterwards if it is left."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    new = path.with_name(f".{path.name[:200]}.{os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(new, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield new
    finally:
        with suppress(OSError):
            new.unlink()
