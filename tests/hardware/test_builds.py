"""Build locks as torch makes them."""

from __future__ import annotations

import os
from pathlib import Path

from platform_launch.hardware import storage


def test_a_lock_left_behind_is_held_by_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    os.utime(lock, (1.0, 1.0))
    (found,) = storage.locks(tmp_path)
    assert (found.path, found.held) == (lock, False)
    assert found.age_s > 1e8


def test_a_lock_that_is_open_is_held(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cu124" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    descriptor = os.open(lock, os.O_CREAT | os.O_EXCL)  # torch/utils/file_baton.py
    try:
        (found,) = storage.locks(tmp_path)
    finally:
        os.close(descriptor)
    assert found.held


def test_no_folder_has_no_locks(tmp_path: Path) -> None:
    assert storage.locks(tmp_path / "nowhere") == ()
