"""Tab completion: what a shell asks for while a command line is typed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.lab.waiting import LIMIT_S


def offered(program: str, words: str) -> list[str]:
    """Return what bash would be offered for the last word."""
    entry = {"platform-launch": "main"}.get(program, program.replace("-", "_"))
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    asked = {variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", f"from platform_launch.__main__ import {entry}; {entry}()"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout.split()


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
    ],
)
def test_commands_options_and_files_are_offered(program: str, words: str, expected: list[str]) -> None:
    assert offered(program, words) == expected
