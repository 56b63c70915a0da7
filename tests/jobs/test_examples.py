"""The ready files are what the commands beside them give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from platform_launch.cli import main
from platform_launch.jobs import TARGETS
from tests.jobs.controllers import CONTROLLERS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "jobs"
COMMANDS = re.findall(
    r"^platform-launch (job .*)$", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE
)


def output(command: str) -> Path:
    words = shlex.split(command)
    return ROOT / words[words.index("--output") + 1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_ready_file_is_what_its_command_gives(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    code = main([*shlex.split(command), "--check"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (0, "")
    assert "is up to date with this job" in printed.err


def test_every_target_has_one_ready_file_and_no_other_lies_there() -> None:
    assert [shlex.split(command)[1] for command in COMMANDS] == list(TARGETS)
    made = {output(command).name for command in COMMANDS}
    assert {path.name for path in EXAMPLES.iterdir()} == made | {"README.md", "job.yaml"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_ready_file_starts_two_nodes(command: str) -> None:
    text = output(command).read_text("utf-8")
    target = shlex.split(command)[1]
    assert {CONTROLLERS[target](text, rank).master for rank in (0, 1)} == {
        CONTROLLERS[target](text, 0).master
    }
    with pytest.raises((AssertionError, KeyError)):
        CONTROLLERS[target](text, 2)
