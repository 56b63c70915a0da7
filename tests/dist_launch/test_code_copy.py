from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from platform_launch.dist_launch.code_copy import packed
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.errors import InputError


def test_code_is_packed_without_what_git_and_python_keep_beside_it(tmp_path: Path) -> None:
    source, folder = tmp_path / "code", tmp_path / "cluster.d"
    for path in (source / "model" / "net.py", source / ".git" / "config", source / "__pycache__" / "a.pyc"):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    folder.mkdir()
    with packed(source, WaitFolder(folder)) as path, tarfile.open(path) as archive:
        assert set(archive.getnames()) == {".", "./model", "./model/net.py"}
    assert list(folder.iterdir()) == []


def test_a_copy_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    source, folder = tmp_path / "data", tmp_path / "cluster.d"
    for path in (source, folder):
        path.mkdir()
    (source / "a.py").write_text("x = 1")
    with (source / "b.bin").open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(InputError, match="larger than 64 MiB"), packed(source, WaitFolder(folder)):
        pass
    assert list(folder.iterdir()) == []
