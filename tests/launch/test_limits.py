"""What a launch needs of the machine before anything else."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread

import pytest

from platform_launch.errors import InstallationError
from platform_launch.launch import launch
from platform_launch.supervise.processes import fill_closed_descriptors
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

    monkeypatch.setattr(launch, "Thread", Scarce)
    with pytest.raises(InstallationError, match="only 5 more threads and processes"):
        launch._expect_threads()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Popen[str]]]:
    """Return what starts a node of a job of two on this machine; they end with the test."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"MASTER_PORT": str(one.getsockname()[1]), "INIT_MASTER_PORT": str(other.getsockname()[1])}
    (tmp_path / "train.py").write_text("print('trained')")
    nodes = []

    def start(rank: int, *words: str, **variables: str) -> Popen[str]:
        job = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", **ports}
        run = [sys.executable, str(MAIN), "run", "--launcher", "python", "--script", "train.py"]
        node = Popen(
            [*words, *run, "--log-dir", str(tmp_path / "logs")],
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
UNFORESEEN = "import psutil\npsutil.net_if_stats = lambda: 1 / 0\n"


@pytest.mark.parametrize(
    ("words", "sitecustomize", "code", "cause"),
    [
        pytest.param(LIMITED, "", 67, "20 files may be open at a time (ulimit -n)", id="few descriptors"),
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


BROKEN = ("raise ImportError('libcudart.so.12: cannot open')", "libcudart.so.12: cannot open")
KILLED = ("import os; os.kill(os.getpid(), 9)", "was killed (SIGKILL)")
SECRET = {"PLATFORM_LAUNCH_SECRET": "a secret of the whole job"}


@pytest.mark.parametrize(
    ("rank", "torch", "cause", "secret"),
    [(1, *BROKEN, {}), (1, *KILLED, SECRET), (0, *BROKEN, SECRET)],
    ids=["broken", "killed, with a secret", "node 0, with a secret"],
)
def test_a_node_whose_interpreter_cannot_load_torch_says_so_to_the_others(
    start_node: Callable[..., Popen[str]],
    tmp_path: Path,
    rank: int,
    torch: str,
    cause: str,
    secret: dict[str, str],
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text(torch)
    healthy = start_node(1 - rank, **secret)
    broken = start_node(rank, PYTHONPATH=str(tmp_path / "broken"), **secret)
    said = healthy.communicate(timeout=LIMIT_S)[1]
    assert healthy.returncode == 67, said
    assert re.search(rf"node {rank}, .*, cannot start: .*{re.escape(cause)}", said), said
    said = broken.communicate(timeout=LIMIT_S)[1]
    assert broken.returncode == 67, said
    assert said.index(cause) < said.index("telling the other nodes")
    assert "import torch" not in said


def test_without_a_null_device_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise FileNotFoundError(2, "No such file or directory", os.devnull)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(InstallationError, match="/dev/null cannot be opened: No such file"):
            fill_closed_descriptors()
