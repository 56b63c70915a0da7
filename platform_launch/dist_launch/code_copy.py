"""The script and its folder as an archive, for nodes without a shared file system."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.errors import InputError
from platform_launch.text import Phrase

# For code, not data: it is sent to every node at every run, through the memory of both sides.
_MOST_BYTES = 64 * 1024 * 1024
_LEFT_OUT = frozenset({".git", ".venv", "__pycache__", "logs", "runs"})


@contextmanager
def packed(source: Path, folder: WaitFolder) -> Iterator[Path]:
    """Yield a compressed archive of a folder, and remove it afterwards. Raises InputError."""
    with ExitStack() as stack:
        try:
            beside = stack.enter_context(TemporaryDirectory(prefix="copy.", dir=folder.path))
            path = Path(beside, "code.tar.gz")
            with tarfile.open(path, mode="w:gz", compresslevel=1) as archive:
                _add(archive, source)
        except OSError as error:
            raise InputError(
                Phrase("{source} cannot be copied: {problem}", source=source, problem=error.strerror or error)
            ) from error
        yield path


def _add(archive: tarfile.TarFile, source: Path) -> None:
    total = 0

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total
        if Path(member.name).name in _LEFT_OUT or not (member.isfile() or member.isdir() or member.issym()):
            return None
        total += member.size
        if total > _MOST_BYTES:
            raise InputError(
                Phrase(
                    ("--copy: {source} is larger than {most} MiB: --copy is for code, not for data"),
                    source=source,
                    most=_MOST_BYTES >> 20,
                ),
                "keep the script in a folder of its own",
            )
        return member

    archive.add(source, arcname=".", filter=wanted)
