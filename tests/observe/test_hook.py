"""The hook under real interpreters: it opens a process to questions, and a script never notices it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import platform_launch.observe
from platform_launch.observe.unix_http import UnixConnection
from platform_launch.observe.workers import remove_torchruns_folders
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S, until

HOOK = Path(platform_launch.observe.__file__).parent / "hook"
SIGNAL = int(signal.SIGRTMAX) - 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "observe"
    made.mkdir(mode=0o700)
    return made


def environment(folder: Path, *path: Path | str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    return {
        **kept,
        "PLATFORM_LAUNCH_OBSERVE": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, [HOOK, *path])),
        "RANK": "3",
        "LOCAL_RANK": "1",
        **more,
    }


def run(
    folder: Path, code: str, *path: Path | str, options: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environment(folder, *path, **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def started(folder: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start code that prints a line when it is ready; it is killed in the end."""
    running = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def described(folder: Path, pid: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"{pid}.json").read_text())
    return document


def wait_for_stacks(stacks: Path, pid: int, expected: str) -> None:
    """Ask until the process is where it is expected."""
    deadline = time.monotonic() + LIMIT_S
    while expected not in stacks.read_text():
        assert time.monotonic() < deadline, stacks.read_text()
        os.kill(pid, SIGNAL)
        time.sleep(0.2)


def test_process_says_who_it_is(folder: Path, started: Callable[[str], subprocess.Popen[str]]) -> None:
    process = started("print('ready', flush=True); input()")
    said = described(folder, process.pid)
    assert (said["pid"], said["rank"], said["local_rank"], said["signal"]) == (process.pid, 3, 1, SIGNAL)
    assert (folder / f"{process.pid}.json").stat().st_mode & 0o777 == 0o600


def test_stacks_are_given_while_a_thread_holds_the_gil(
    folder: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = started(
        "import ctypes\n"
        "def holds():\n"
        "    lock = ctypes.create_string_buffer(64)\n"
        "    for _ in range(2):\n        ctypes.PyDLL(None).pthread_mutex_lock(lock)\n"
        "print('ready', flush=True)\n"
        "holds()"
    )
    wait_for_stacks(folder / f"{process.pid}.stacks", process.pid, "in holds")
    assert process.poll() is None


def test_forked_child_writes_into_the_file_of_its_parent(
    folder: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = started(
        "import os, time\n"
        "def child():\n    time.sleep(300)\n"
        "pid = os.fork()\n"
        "if pid:\n    print(pid, flush=True); os.wait()\n"
        "else:\n    child()"
    )
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        wait_for_stacks(folder / f"{process.pid}.stacks", int(child), "in child")
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_other_sitecustomize_runs_too(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.found = __file__\n")
    done = run(folder, "import sitecustomize; print(found, sitecustomize.__file__)", other)
    assert done.stderr == ""
    assert done.stdout.split() == [str(other / "sitecustomize.py")] * 2


def test_other_sitecustomize_that_fails_fails_as_it_would_alone(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("1 / 0\n")
    alone = run(folder, "print('ran')", PYTHONPATH=str(other))
    chained = run(folder, "print('ran')", other)
    assert (chained.returncode, chained.stdout) == (alone.returncode, alone.stdout) == (0, "ran\n")
    assert "ZeroDivisionError" in chained.stderr
    assert "ZeroDivisionError" in alone.stderr


def test_hook_of_another_installation_on_the_path_is_no_second_one(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_bytes((HOOK / "sitecustomize.py").read_bytes())
    done = run(
        folder, "import signal; print(hasattr(signal.signal.__wrapped__.__wrapped__, '__wrapped__'))", other
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_empty_folders_that_torchrun_left_are_found_and_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, told in (("torchelastic_a", True), ("torchelastic_b", True), ("of_the_user", False)):
        made = tmp_path / name / "none_x" / "attempt_0" / "0"
        made.mkdir(parents=True)
        if name == "torchelastic_b":
            (made / "error.json").touch()
        code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])"
        run(folder, code, TORCHELASTIC_ERROR_FILE=str(made / "error.json"))
        assert any(link.readlink() == tmp_path / name for link in folder.glob("*.torchrun")) is told
    with monkeypatch.context() as inside:
        # The launcher itself is a worker of that torchrun.
        outer = tmp_path / "torchelastic_a/none_x/attempt_0/0/error.json"
        inside.setenv("TORCHELASTIC_ERROR_FILE", str(outer))
        remove_torchruns_folders(folder)
        assert outer.parent.exists()
    remove_torchruns_folders(folder)
    left = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("attempt_0/0")}
    assert left == {"torchelastic_b", "of_the_user"}
    assert (tmp_path / "torchelastic_b/none_x/attempt_0/0/error.json").exists()
    assert not (tmp_path / "torchelastic_a").exists()


@pytest.mark.parametrize("option", ["-I", "-S", "-E", "-sE"])
def test_interpreter_that_is_told_to_ignore_it_is_just_not_hooked(folder: Path, option: str) -> None:
    done = run(folder, "print('ran')", options=(option,))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert list(folder.iterdir()) == []


def test_nothing_happens_without_a_folder(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path / "absent")):
        done = run(tmp_path, "print('ran')", PLATFORM_LAUNCH_OBSERVE=folder)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_costs_nothing(folder: Path) -> None:
    """Not even root may write there."""
    done = run(folder, "print('ran')", PLATFORM_LAUNCH_OBSERVE="/proc/self/fdinfo")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@takes_long
def test_folder_whose_path_is_too_long_for_a_socket_serves_as_well_and_the_script_ends_silently(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("f" * 100)
    folder.mkdir()
    ask = (
        "import os, pathlib, torch.distributed\n"
        "from platform_launch.observe.workers import ask_torch, find_hooked\n"
        "(me,) = find_hooked(pathlib.Path(os.environ['PLATFORM_LAUNCH_OBSERVE']))\n"
        "print(ask_torch(me, 'ping', 30))"
    )
    done = run(folder, ask)
    assert (done.stdout, done.stderr) == ("b'pong'\n", "")


def test_script_that_takes_the_signal_for_itself_gets_no_more_of_ours(
    folder: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = started(
        f"import signal\nsignal.signal({SIGNAL}, lambda *_: None)\nprint('ready', flush=True)\ninput()"
    )
    assert described(folder, process.pid)["signal"] == 0


def test_torch_answers_on_a_socket_and_whoever_asks_as_the_script_ends(
    folder: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = started("import torch\nprint('ready', flush=True)\ninput()")
    path = folder / f"{process.pid}.sock"
    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o600
    asker = UnixConnection(path, LIMIT_S)
    asker.connect()
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0\xff%d" % os.getpid())  # in the same list as ours, and no UTF-8
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: not path.exists())
        asker.request("POST", "/handler/dump_traceback")  # which takes the GIL
        assert b"in at_exit" in asker.getresponse().read()
        asker.close()
        assert process.wait(LIMIT_S) == 0


@takes_long
def test_torch_answers_for_the_program_that_a_process_became(
    folder: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    """As a script that starts itself anew in its place, with another environment."""
    again = "import torch.distributed; print('ready', flush=True); input()"
    itself = f"os.execv(sys.executable, [sys.executable, '-c', {again!r}])"
    process = started(f"import os, sys, torch.distributed; {itself}")
    asker = UnixConnection(folder / f"{process.pid}.sock", LIMIT_S)
    asker.request("POST", "/handler/dump_traceback")
    assert b"most recent call first" in asker.getresponse().read()
    asker.close()


def test_torch_without_a_worker_server_is_left_as_it_is(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "path" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from torch.distributed import distributed_c10d")
    (package / "distributed_c10d.py").write_text("imported = True\n")
    done = run(
        folder, "import torch.distributed as d; print(d.distributed_c10d.imported)", package.parents[1]
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_python_without_torch_is_left_as_it_is(folder: Path) -> None:
    code = "try:\n    import torch.distributed.distributed_c10d\nexcept ImportError:\n    print('no torch')"
    done = run(folder, "import sys; sys.modules['torch'] = None\n" + code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no torch\n", "")


@takes_long
def test_spawned_child_is_hooked_without_a_server(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def work(queue):\n"
        "    import torch.distributed\n"
        "    queue.put((os.getpid(), sorted(os.listdir(os.environ['PLATFORM_LAUNCH_OBSERVE']))))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=work, args=(queue,)); process.start()\n"
        "    pid, names = queue.get(); process.join()\n"
        "    print(f'{pid}.stacks' in names, f'{pid}.sock' in names)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_files_are_gone_when_a_process_has_ended_but_for_who_a_rank_was(folder: Path) -> None:
    assert run(folder, "print('ran')").returncode == 0
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    without_rank = environment(folder)
    del without_rank["RANK"]
    for path in folder.iterdir():
        path.unlink()
    subprocess.run([sys.executable, "-c", "1"], env=without_rank, check=True, timeout=LIMIT_S)
    assert list(folder.iterdir()) == []


def test_rank_that_is_no_number_is_none(
    folder: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    done = run(
        folder,
        "import os; print(open(f\"{os.environ['PLATFORM_LAUNCH_OBSERVE']}/{os.getpid()}.json\").read())",
        RANK="0; x",
    )
    assert json.loads(done.stdout)["rank"] is None


@takes_long
def test_jax_is_left_as_it_is(folder: Path) -> None:
    pytest.importorskip("jax")
    code = (
        "import os\nos.environ['JAX_PLATFORMS'] = 'cpu'\nimport jax.numpy as n\nprint(int(n.ones(3).sum()))"
    )
    done = run(folder, code)
    assert (done.returncode, done.stdout) == (0, "3\n")
