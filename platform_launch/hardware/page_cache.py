"""Brings the files of Python packages into memory's page cache, so that a spare's processes import them fast.

It needs no memory of its own, starts nothing, and is undone by the kernel if memory is short.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from platform_launch.hardware import packages

_SUFFIXES = (".py", ".pyc", ".so")
# Packages whose libraries torch loads.
_OF_TORCH = ("nvidia", "triton")
_LARGEST_SCRIPT = 4 * 1024 * 1024
_LOWEST_PRIORITY = 19


@cache
def warm(names: tuple[str, ...], script: Path | None) -> None:
    """Start reading these packages and those that the script imports, once, in the background."""
    with suppress(RuntimeError):  # no thread can be started
        threading.Thread(target=_read, args=(names, script), name="page-cache", daemon=True).start()


def _read(names: tuple[str, ...], script: Path | None) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    wanted = dict.fromkeys((*names, *_imported(script), *(_OF_TORCH if "torch" in names else ())))
    for name in wanted.keys() - sys.stdlib_module_names:
        with suppress(ImportError, ValueError, OSError):
            for path in _files(packages.find([name])[name]):
                _read_ahead(path)


def _imported(script: Path | None) -> Iterator[str]:
    """Return the top-level names that a script imports anywhere; none if it cannot be read."""
    if script is None:
        return
    try:
        if script.stat().st_size > _LARGEST_SCRIPT:
            return
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(module: packages.Module) -> Iterator[Path]:
    folders = list(module.namespace)
    if module.origin is not None and module.origin.name == "__init__.py":
        folders.append(module.origin.parent)
    elif module.origin is not None:
        yield module.origin
    for folder in folders:
        for parent, _, names in os.walk(folder):
            yield from (Path(parent, name) for name in names if name.endswith(_SUFFIXES) or ".so." in name)


def _read_ahead(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
