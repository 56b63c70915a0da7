"""Modules and commands run under every launcher, with the place of their node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

# As LLaMA-Factory's launcher reads its variables (src/llamafactory/launcher.py, in other words): each has the
# default of a node that trains alone, so that a name it does not get is not noticed before the losses differ.
LLAMAFACTORY = """#!{python}
import os, sys
node = [
    "--nnodes", os.getenv("NNODES", "1"), "--node_rank", os.getenv("NODE_RANK", "0"),
    "--nproc_per_node", os.getenv("NPROC_PER_NODE", "1"),
    "--master_addr", os.getenv("MASTER_ADDR", "127.0.0.1"), "--master_port", os.getenv("MASTER_PORT", "0"),
]
os.execvp("torchrun", ["torchrun", *node, {worker!r}, *sys.argv[2:]])
"""
WORKER = """
import os, sys
place = " ".join(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"))
open(f"place{os.environ['RANK']}", "w").write(f"{place} {sys.argv[1:]}")
"""

pytestmark = pytest.mark.train


def platform_launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "platform_launch", *arguments],
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(["--launcher", "torchrun"], marks=pytest.mark.nightly),
        pytest.param(
            ["--launcher", "accelerate", "--deepspeed-config", "plain.yaml"], marks=pytest.mark.nightly
        ),
        ["--launcher", "python"],
    ],
    ids=lambda launcher: launcher[1],
)
def test_a_module_with_relative_imports_runs_under_each_launcher(launcher: list[str], tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("distributed_type: 'NO'\ncompute_environment: LOCAL_MACHINE\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "util.py").write_text("NUMBER = 41\n")
    (tmp_path / "pkg" / "train.py").write_text(
        "import sys\nfrom .util import NUMBER\nprint('it works:', NUMBER + 1, sys.argv[1:])\n"
    )
    named = ["--nproc-per-node", "1", "--no-doctor", "-m", "pkg.train", "--", "--lr", "1"]
    done = platform_launch(tmp_path, "run", *launcher, *named)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it works: 42 ['--lr', '1']" in done.stdout


@takes_long
def test_a_tool_that_starts_torchrun_itself_trains_on_all_nodes_together(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    tool = tmp_path / "llamafactory-cli"
    tool.write_text(LLAMAFACTORY.format(python=sys.executable, worker=str(tmp_path / "worker.py")))
    tool.chmod(0o755)
    two_nodes = ["simulate", "--nodes", "2", "--nproc-per-node", "2", "--no-roll-call"]
    done = platform_launch(tmp_path, *two_nodes, "--", "./llamafactory-cli", "train", "x.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    places = [(tmp_path / f"place{rank}").read_text() for rank in range(4)]
    assert places == [f"{rank} {rank % 2} 4 {rank // 2} ['x.yaml']" for rank in range(4)]


@takes_long
def test_a_script_that_calls_torchrun_without_any_option_trains_on_all_nodes_together(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "job.sh").write_text('torchrun worker.py "$@"\n')
    done = platform_launch(
        tmp_path, *("simulate", "--nodes", "2", "--no-roll-call", "--", "bash", "job.sh", "a b")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "place1").read_text() == "1 0 2 1 ['a b']"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("exit 0", 0),
        ("exit 42", 42),
        # A launcher that returned 0 for a failed child: github.com/pytorch/pytorch/issues/20728.
        ("kill -KILL $$", 137),
        # A function that started torchrun and returned normally: github.com/instructlab/training/issues/216.
        ("sh -c 'exit 7'", 7),
    ],
)
def test_a_command_s_exit_code_is_the_job_s(end: str, code: int, tmp_path: Path) -> None:
    done = platform_launch(tmp_path, "run", "--", "sh", "-c", f"echo run $NNODES $NODE_RANK; {end}")
    assert done.returncode == code, done.stdout + done.stderr
    assert "run 1 0" in done.stdout


def test_sigterm_ends_a_command(tmp_path: Path) -> None:
    done = platform_launch(
        tmp_path, "run", "--grace-period", "5", "--", "sh", "-c", "kill -TERM $PPID; sleep 600"
    )
    assert done.returncode == 143, done.stdout + done.stderr
