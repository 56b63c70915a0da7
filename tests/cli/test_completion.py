"""Tab completion: what a shell asks for while a command line is typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform_launch.health.quarantine import QuarantinedNode, add
from tests.lab.needs import Need
from tests.lab.waiting import LIMIT_S

requires_fish = Need("fish", lambda: "" if shutil.which("fish") else "needs fish").mark


def offered(program: str, words: str) -> list[str]:
    """Return what bash would be offered for the last word."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return asked_by(program, "bash_complete", asked).split()


def asked_by(program: str, instruction: str, asked: dict[str, str]) -> str:
    """Return what a shell reads."""
    entry = {"platform-launch": "main"}.get(program, program.replace("-", "_"))
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    done = subprocess.run(
        [sys.executable, "-c", f"from platform_launch.__main__ import {entry}; {entry}()"],
        env={**os.environ, variable: instruction, **asked},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("platform-launch", "platform-launch si", ["plain,simulate"]),
        ("platform-launch", "platform-launch run --max-r", ["plain,--max-restarts"]),
        ("platform-launch", "platform-launch run --launcher to", ["plain,torchrun"]),
        ("platform-launch", "platform-launch why some", ["file,some"]),
        ("platform-launch", "platform-launch procguard ag", ["plain,agent"]),
        ("dist-launch", "dist-launch k", ["plain,kill"]),
        ("procguard", "procguard ctl runs --f", ["plain,--format"]),
        ("platform-launch", "platform-launch run --platform kubeb", ["plain,kubebrain"]),
        ("platform-launch", "platform-launch run --launcher = to", ["plain,torchrun"]),
        ("platform-launch", "platform-launch run --launcher = jax --no-d", ["plain,--no-doctor"]),
        ("platform-launch", "platform-launch run --log-dir some", ["dir,some"]),
        ("platform-launch", "platform-launch run --launcher jax -- some", ["file,some"]),
        ("platform-launch", "platform-launch run some", []),
        ("platform-launch", "platform-launch simulate --max-r", ["plain,--max-restarts"]),
        ("platform-launch", "platform-launch simulate --launcher to", ["plain,torchrun"]),
        ("dist-launch", "dist-launch run some", ["file,some"]),
        ("procguard", "procguard ctl --server", []),
        ("procguard", "procguard ctl start --server http://127.0.0.1:1 tr", []),
    ],
)
def test_commands_options_and_files_are_offered(program: str, words: str, expected: list[str]) -> None:
    assert offered(program, words) == expected


def test_jobs_whose_logs_are_there_are_offered(tmp_path: Path) -> None:
    for name in ("train_llama_node0_20260101-000000.log", "train_gpt_node0_20260101-000000.log", "other.log"):
        (tmp_path / name).touch()
    asked = f"platform-launch logs --log-dir {tmp_path} "
    assert offered("platform-launch", asked) == ["plain,gpt", "plain,llama"]
    assert offered("platform-launch", f"{asked}gpt l") == ["plain,llama"]
    assert offered("platform-launch", f"{asked}gpt g") == ["file,g"], "a job that stands there already"


def test_nodes_in_quarantine_are_offered_to_release(tmp_path: Path) -> None:
    for node in ("gn17", "gn18", "tpu3"):
        add(tmp_path / "q.jsonl", QuarantinedNode(node, time.time(), None, "hot"))
    asked = f"platform-launch quarantine release --quarantine {tmp_path}/q.jsonl gn"
    assert offered("platform-launch", asked) == ["plain,gn17", "plain,gn18"]


def test_zsh_is_given_the_option_with_its_value() -> None:
    asked = {"COMP_WORDS": "platform-launch run --launcher=to", "COMP_CWORD": "2"}
    assert asked_by("platform-launch", "zsh_complete", asked).splitlines() == [
        "plain",
        "--launcher=torchrun",
        "_",
    ]
    assert "compset -P 1 '*='" in asked_by("platform-launch", "zsh_source", {})


@requires_fish
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run --launcher=to", ["--launcher=torchrun"]),
        ("run --script=tr", ["--script=train.py"]),
        ("run --script my", ["my dir/"]),
        ("qua", ["quarantine\tlist, add and release nodes that no job should be put on for a while"]),
    ],
)
def test_fish_completes_values_files_and_whole_descriptions(
    line: str, expected: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "platform-launch"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom platform_launch.__main__ import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    (tmp_path / "train.py").touch()
    (tmp_path / "my dir").mkdir()
    loaded = "_PLATFORM_LAUNCH_COMPLETE=fish_source platform-launch | source"
    script = f"{loaded}; complete -C 'platform-launch {line}'"
    root = Path(__file__).parents[2]
    here = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(root), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == expected, done.stderr
