"""Packages that a spare will import are read into the page cache before it needs them."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from platform_launch.hardware import page_cache
from tests.lab.waiting import until


def evict(path: Path) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def is_cached(path: Path) -> bool:
    """Return whether the first page is in memory; asking does not bring it there."""
    resident = (ctypes.c_ubyte * 16)()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as pages:
        start = ctypes.c_char.from_buffer(pages)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(pages)), resident)
        del start
    assert failed == 0
    return bool(resident[0] & 1)


def test_what_the_script_imports_is_read_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: tmp_path / name / "library.so" for name in ("asked_for", "imported_too", "unused")}
    for path in files.values():
        path.parent.mkdir()
        path.with_name("__init__.py").touch()
        path.write_bytes(os.urandom(16 * mmap.PAGESIZE))
        evict(path)
    if any(map(is_cached, files.values())):
        pytest.skip("this file system keeps all files in memory")
    script = tmp_path / "train.py"
    script.write_text("import os\n\n\ndef main():\n    from imported_too.models import Net\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    page_cache.warm(("asked_for", "not_installed"), script)
    until(lambda: is_cached(files["asked_for"]) and is_cached(files["imported_too"]))
    assert not is_cached(files["unused"])


@pytest.mark.parametrize("content", [b"import (", b"\x00", None])
def test_a_script_that_cannot_be_read_imports_nothing(tmp_path: Path, content: bytes | None) -> None:
    script = tmp_path / "train.py"
    if content is not None:
        script.write_bytes(content)
    assert list(page_cache._imported(script)) == []
