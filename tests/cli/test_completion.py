"""Tab completion: what a shell asks for while a command line is typed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from platform_launch.cli import dist_launch, procguard
from platform_launch.cli import main as platform_launch
from platform_launch.health.quarantine import QuarantinedNode, add
from tests.lab.in_process import run_in_process

PROGRAMS = {
    "platform-launch": platform_launch,
    "dist-launch": dist_launch.main,
    "procguard": procguard.main,
}


def offered(program: str, words: str) -> list[str]:
    """Return what bash would be offered for the last word."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return asked_by(program, "bash_complete", asked).split()


def asked_by(program: str, instruction: str, asked: dict[str, str]) -> str:
    """Return what a shell reads."""
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", variable: instruction, **asked}
    done = run_in_process([], env, main=PROGRAMS[program])
    assert done.returncode == 0, done.stderr
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
