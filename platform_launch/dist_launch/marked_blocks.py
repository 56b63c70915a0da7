"""Marked blocks in files that belong to others: added, replaced and removed as a whole.

# >>> dist-launch node0 /tmp/cluster_info.json >>>
…
# <<< dist-launch node0 /tmp/cluster_info.json <<<
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from platform_launch.files import PRIVATE, write_whole


def with_block(text: str, marker: str, lines: Sequence[str], *, at_top: bool = False) -> str:
    """Return ``text`` with one block of this marker, at the end or (for ssh_config) at the beginning."""
    text = without_block(text, marker)
    block = "".join(f"{line}\n" for line in (_opening(marker), *lines, _closing(marker)))
    if at_top:
        return block + text
    return text + ("\n" if text and not text.endswith("\n") else "") + block


def without_block(text: str, marker: str) -> str:
    """Return ``text`` without the blocks of this marker; an unclosed block loses its opening line only.

    A newline that :func:`with_block` added before a block stays.
    """
    kept: list[str] = []
    held: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        stripped = line.rstrip("\r\n")
        if stripped == _opening(marker):
            kept += held[1:]  # an opening line without its closing line: only that line is certainly ours
            inside, held = True, [line]
        elif inside and stripped == _closing(marker):
            inside, held = False, []
        elif inside:
            held.append(line)
        else:
            kept.append(line)
    return "".join(kept + held[1:])


def write_block(
    path: Path, marker: str, lines: Sequence[str], *, at_top: bool = False, in_place: bool = False
) -> None:
    """Write this block into a file, creating file and folder (0600, 0700) if missing. Raises OSError.

    ``in_place`` keeps the inode, which /etc/hosts needs if a container runtime mounted it.
    """
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o700, parents=True)
    with _alone(path.parent):
        text = _read(path)
        wanted = with_block(text, marker, lines, at_top=at_top)
        if wanted != text:
            _write(path, wanted, in_place=in_place)


def remove_block(path: Path, marker: str, *, in_place: bool = False) -> None:
    """Remove the block, and the file if it is then empty. Raises OSError."""
    if not path.exists():
        return
    with _alone(path.parent):
        text = _read(path)
        wanted = without_block(text, marker)
        if wanted == text:
            return
        if wanted or in_place:
            _write(path, wanted, in_place=in_place)
        else:
            path.unlink()


def _opening(marker: str) -> str:
    return f"# >>> {marker} >>>"


def _closing(marker: str) -> str:
    return f"# <<< {marker} <<<"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str, *, in_place: bool) -> None:
    if in_place:
        with path.open("r+", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.truncate()
        return
    target = path.resolve()  # a symbolic link stays one
    write_whole(target, text, mode=None if target.exists() else PRIVATE)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder's files: a home on a network file system is shared by all nodes."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
