"""What a launch needs of the machine before anything else."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread

import pytest

from platform_launch.console import Console
from platform_launch.errors import InstallationError
from platform_launch.launch import health_watch, peers
from platform_launch.launch.exit_code import ExitFile
from platform_launch.launch.peers import StillQuestion, pack
from platform_launch.launch.training_command import HangOptions, TrainingCommand
from platform_launch.launch.watched_training import LaunchContext, WatchedTraining
from platform_launch.observe import node_probe
from platform_launch.rendezvous.run.texts import RequestReceived
from platform_launch.supervise import Command, processes
from platform_launch.supervise.signals import SignalInbox
from tests.lab.disk import requires_mount
from tests.lab.waiting import LIMIT_S

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"


def test_too_few_threads_are_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scarce(Thread):
        left = 5

        def start(self) -> None:
            if not Scarce.left:
                raise RuntimeError("can't start new thread")
            Scarce.left -= 1
            super().start()

    monkeypatch.setattr(processes, "Thread", Scarce)
    with pytest.raises(InstallationError, match="only 5 more threads and processes"):
        processes._expect_threads()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Popen[str]]]:
    """Return what starts a node of a job of two on this machine; they end with the test."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"MASTER_PORT": str(one.getsockname()[1]), "INIT_MASTER_PORT": str(other.getsockname()[1])}
    (tmp_path / "train.py").write_text("print('trained')")
    nodes = []

    def start(rank: int, *words: str, options: tuple[str, ...] = (), **variables: str) -> Popen[str]:
        job = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", **ports}
        run = [sys.executable, str(MAIN), "run", "--launcher", "python", "--script", "train.py"]
        node = Popen(
            [*words, *run, "--log-dir", str(tmp_path / "logs"), *options],
            env={"PATH": os.environ["PATH"], **job, **variables},
            cwd=tmp_path,
            stderr=PIPE,
            stdout=DEVNULL,
            text=True,
        )
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node.kill()
        node.communicate()


LIMITED = ("sh", "-c", 'ulimit -n 20; exec "$0" "$@"')
WITHOUT_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc; exec "$0" "$@"')
WITHOUT_NULL = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev; exec "$0" "$@" <&-')
NODEV = 'mount -t tmpfs -o nodev none /dev; mknod -m 666 /dev/null c 1 3; exec "$0" "$@"'
CLOSED_NULL = ("unshare", "--mount", "sh", "-c", NODEV)
FORBIDDEN = "import psutil\ndef no(): raise PermissionError(13, 'Permission denied', '/data')\n"
FORBIDDEN += "psutil.net_if_addrs = no\n"
UNFORESEEN = "import psutil\npsutil.net_if_stats = lambda: 1 / 0\n"


@pytest.mark.parametrize(
    ("words", "sitecustomize", "code", "cause"),
    [
        pytest.param(
            LIMITED, "", 67, "only 20 files may be open at a time (ulimit -n)", id="few descriptors"
        ),
        pytest.param(WITHOUT_NULL, "", 67, "/dev/null cannot be opened", id="no null", marks=requires_mount),
        pytest.param(CLOSED_NULL, "", 67, "/dev/null cannot be opened", id="nodev", marks=requires_mount),
        pytest.param((), FORBIDDEN, 66, "/data: Permission denied", id="forbidden"),
        pytest.param((), UNFORESEEN, 70, "ZeroDivisionError: division by zero", id="unforeseen"),
        pytest.param(
            WITHOUT_PROC, "", 67, "/proc/net/dev cannot be read", id="no proc", marks=requires_mount
        ),
    ],
)
def test_what_keeps_a_node_from_starting_is_told_to_the_others_whatever_it_is(
    start_node: Callable[..., Popen[str]],
    tmp_path: Path,
    words: tuple[str, ...],
    sitecustomize: str,
    code: int,
    cause: str,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(sitecustomize)
    healthy = start_node(0)
    broken = start_node(1, *words, **({"PYTHONPATH": str(tmp_path)} if sitecustomize else {}))
    said = healthy.communicate(timeout=LIMIT_S)[1]
    assert healthy.returncode == code, said
    assert f"cannot start: {cause}" in said
    assert cause in broken.communicate(timeout=LIMIT_S)[1]
    assert broken.returncode == (1 if sitecustomize == UNFORESEEN else code), "of a fault Python tells where"


NO_TORCH = "raise ImportError('libcudart.so.12: cannot open shared object file')"


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param({}, marks=pytest.mark.nightly),
        {"PLATFORM_LAUNCH_SECRET": "a secret of the whole job"},
    ],
)
def test_nodes_without_a_torch_that_works_meet_and_finish(
    start_node: Callable[..., Popen[str]], tmp_path: Path, secret: dict[str, str]
) -> None:
    """An image for JAX has none; what a job's own script does without torch is its own matter."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(NO_TORCH)
    nodes = [start_node(rank, PYTHONPATH=str(tmp_path), **secret) for rank in range(2)]
    said = [node.communicate(timeout=LIMIT_S)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "[roll-call-complete]" in said[0]


def test_no_process_of_a_launcher_loads_torch() -> None:
    """In its own process, which imports all that a node of several needs."""
    code = (
        "import sys; import platform_launch.launch.together, platform_launch.rendezvous.run.participation; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)


def test_a_secret_that_cannot_be_read_hides_no_other_reason(start_node: Callable[..., Popen[str]]) -> None:
    secret = {"PLATFORM_LAUNCH_SECRET_FILE": "/nowhere/secret"}
    node = start_node(1, options=("--script", "nowhere.py"), **secret)
    _, said = node.communicate(timeout=LIMIT_S)
    assert re.findall(r"^error: (\S*)", said, re.MULTILINE) == ["nowhere.py"], said


def test_where_no_thread_is_left_for_the_monitor_the_link_to_the_other_nodes_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the monitor is asked in the threads of the link, each of which must go on for the job to."""
    hangs = HangOptions(tmp_path, node_rank=0, world_size=2, host="gn6", log=tmp_path / "a.log")
    command = TrainingCommand(Command((), {}), tmp_path / "a.log", "", 1.0, ExitFile(None), hangs)
    watched = WatchedTraining(command, LaunchContext(Console(), SignalInbox()), send=lambda _message: None)
    watched._has_folder = True
    watched._start_watches()
    assert watched._hangs is not None

    def refuse(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(node_probe, "ThreadPoolExecutor", refuse)
    monkeypatch.setattr(peers, "Thread", refuse)
    monkeypatch.setattr(node_probe.NodeProbe, "left", refuse)
    assert watched.still_s(0.0) is None
    assert watched.report_early_exits() == ""
    monkeypatch.setattr(health_watch.HealthWatch, "check", refuse)
    assert watched.check_devices() is None
    watched.receive(RequestReceived("key", pack(StillQuestion(1.0))))
    watched._hangs.stop()


WITHOUT_THREADS = """
import sys, threading
from platform_launch.launch import conclusion
from platform_launch.cli import main

class Refused(threading.Thread):
    def start(self):
        raise RuntimeError("can't start new thread")

conclusion.Thread = Refused
sys.exit(main(sys.argv[1:]))
"""


def test_where_no_thread_is_left_at_the_end_the_exit_code_is_the_trainings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(3)")
    run = ["run", "--launcher", "python", "--script", "train.py", "--log-dir", str(tmp_path), "--no-doctor"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THREADS, *run],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(MAIN.parents[1])},
        stdout=PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 3
    assert "[training-failed exit_code=3]" in done.stdout
    assert "Traceback" not in done.stdout
