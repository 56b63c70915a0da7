"""A launch that was killed leaves its folder; the next one of the same user sweeps it, and no other's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch import files
from platform_launch.errors import InputError
from platform_launch.launch.training_command import open_folder, remove_folder, sweep

HOLDER = """
import sys, time
from pathlib import Path
from platform_launch.launch.training_command import open_folder
open_folder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "platform_launch_1"
    folder.mkdir(mode=0o700)
    return folder


def test_the_folder_of_a_running_launch_stays_and_that_of_a_killed_one_goes(temporary: Path) -> None:
    folder = temporary / "observe-20260102-030405-77"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (folder / "7.sock").touch()
        sweep(temporary)
        assert (folder / "7.sock").exists()
        holder.send_signal(signal.SIGKILL)
    sweep(temporary)
    assert not folder.exists()


def test_a_launch_does_not_sweep_its_own_folder_and_opens_it_empty_again(temporary: Path) -> None:
    folder = temporary / f"observe-20260102-030405-{os.getpid()}"
    open_folder(folder)
    (folder / "7.sock").touch()
    sweep(temporary)
    assert (folder / "7.sock").exists()
    open_folder(folder)
    assert list(folder.iterdir()) == []
    remove_folder(folder)
    assert not folder.exists()


def test_what_is_not_a_launchs_folder_stays(temporary: Path, tmp_path: Path) -> None:
    other = temporary / "torch_extensions_1"
    other.mkdir()
    aim = tmp_path / "aim"
    aim.mkdir()
    (aim / "kept").touch()
    link = temporary / "observe-20260102-030405-8"
    link.symlink_to(aim)
    named_alike = temporary / "observe-mine"
    named_alike.mkdir(mode=0o700)
    sweep(temporary)
    assert other.exists()
    assert link.is_symlink()
    assert (aim / "kept").exists()
    assert named_alike.exists()


def test_nothing_is_swept_in_a_folder_that_others_may_change(temporary: Path) -> None:
    left = temporary / "observe-20260102-030405-9"
    left.mkdir(mode=0o700)
    temporary.chmod(0o777)
    sweep(temporary)
    assert left.exists()
    temporary.chmod(0o700)
    sweep(temporary)
    assert not left.exists()


def test_a_folder_that_another_launch_removes_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, removed = tmp_path / "base" / "observe", list[Path]()
    made = files.private_problem

    def remove_once(path: Path) -> str:
        if path == folder and not removed:
            removed.append(path)
            path.rmdir()
        return made(path)

    monkeypatch.setattr(files, "private_problem", remove_once)
    open_folder(folder)
    assert removed
    assert folder.is_dir()
    remove_folder(folder)


def test_a_folder_that_can_never_be_created_is_an_error() -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        open_folder(Path("/proc/platform_launch_0/observe"))
