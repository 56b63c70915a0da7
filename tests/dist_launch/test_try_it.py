"""The recipe of the how-to for one machine, word for word, and the command from a checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dist_launch.lab import ROOT, Node, make, requires_ssh
from tests.lab.netns import hosts, requires_netns
from tests.lab.waiting import LIMIT_S

PAGE = ROOT / "docs" / "how-to" / "dist-launch.md"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    """One machine with a home of its own."""
    with hosts(1) as made:
        (node,) = make(made, tmp_path)
        yield node


@requires_netns
@requires_ssh
def test_the_recipe_for_one_machine_works_as_it_stands(machine: Node, tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Try it on one machine")[2]
    found = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert found is not None
    script = tmp_path / "recipe.sh"
    script.write_text("set -m\n" + found[1].replace("/tmp/try", str(tmp_path / "try")))
    done = machine.host.run(
        ["bash", script],
        env={"HOME": str(machine.home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=tmp_path,
        timeout_s=LIMIT_S,
    )
    waited = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + waited
    assert done.stdout.count(": ok: ") == 2, done.stdout
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("["))
    assert [line.rpartition(" ")[0] for line in lines] == [
        f"[rank-{rank}] node {rank} of 2 runs in process" for rank in (0, 1)
    ]
    assert "[SUCCESS] succeeded on 2 of 2 nodes after" in done.stderr
    assert not list((tmp_path / "try").iterdir())


@pytest.mark.parametrize("command", [["dist-launch"], ["dist-launch", "run"]])
def test_it_starts_from_a_checkout_wherever_it_is_called(tmp_path: Path, command: list[str]) -> None:
    link = tmp_path / "elsewhere"
    link.symlink_to(ROOT / "dist-launch")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIRTUAL_ENV": sys.prefix}
    for start in (ROOT / "dist-launch", link):
        done = subprocess.run(
            [start, *command[1:], "--help"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"Usage: platform-launch {' '.join(command)} " in done.stdout
        assert "platform_launch_command" not in done.stdout


def test_the_entrypoint_itself_still_launches(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(
        [ROOT / "start_multinode_platform.sh", "--help"],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "Usage: platform-launch run " in done.stdout
