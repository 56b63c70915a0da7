"""File systems that are really small, full or read-only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.hardware import storage
from tests.lab.disk import disk, requires_mount


@requires_mount
def test_a_small_file_system_is_measured(tmp_path: Path) -> None:
    with disk(tmp_path / "small", "size=8m,nr_inodes=20") as small:
        (small / "half").write_bytes(bytes(4 * 1024**2))
        found = storage.read(small)
        assert round(found.size_gib * 1024) == 8
        assert round(found.free_gib * 1024) == 4
        assert found.free_inodes is not None
        assert found.free_inodes < 20
        assert found.problem == ""


@requires_mount
def test_a_full_file_system_has_nothing_free(tmp_path: Path) -> None:
    with disk(tmp_path / "full", "size=1m") as full:
        with pytest.raises(OSError, match="No space left"):
            (full / "all").write_bytes(bytes(2 * 1024**2))
        assert storage.read(full / "not" / "made" / "yet").free_gib == 0.0


@requires_mount
def test_a_read_only_file_system_is_a_problem_also_for_root(tmp_path: Path) -> None:
    with disk(tmp_path / "frozen", "ro,size=1m") as frozen:
        assert storage.read(frozen / "logs").problem == f"{frozen} is mounted read-only"


def test_a_file_in_the_way_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    assert "is not a folder" in storage.read(tmp_path / "logs").problem


def test_nothing_can_be_written_among_the_files_of_the_kernel() -> None:
    assert storage.read(Path("/proc/x/logs")).problem == "only the kernel can create files in /proc"
    assert storage.read(Path("/sys/x")).problem == "only the kernel can create files in /sys"


def test_a_folder_that_is_still_to_be_made_lies_where_its_parent_lies(tmp_path: Path) -> None:
    found = storage.read(tmp_path / "a" / "b")
    assert found.folder == tmp_path / "a" / "b"
    assert found.size_gib > 0
    assert found.problem == ""


def test_no_folder_for_temporary_files_is_an_error_with_a_hint(tmp_path: Path) -> None:
    program = (
        "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/nowhere'];"
        "from platform_launch.hardware.storage import temporary_folder; temporary_folder()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "HardwareError: no folder for temporary files" in done.stderr
