from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def why(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "platform_launch", "why", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def test_answer_is_printed_one_fact_a_line(logs: Path) -> None:
    done = why(str(logs / "exception_one_rank.log"))
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == (
        "cause:      ValueError: latents have 15 channels, expected 16 (clip 3) [python_exception] on rank 1"
    )
    assert lines[2] == "raised at:  /workspace/raise_rank1.py:6 in step"
    assert lines[4] == "then:       1 other rank then lost their connection"


def test_json_stands_alone_on_standard_output(logs: Path) -> None:
    done = why("--format", "json", str(logs / "two_nodes"))
    document = json.loads(done.stdout)
    assert (document["cause"], document["node"], document["rank"]) == ("python_exception", 1, 1)
    assert document["evidence"][0]["line"] == 10
    assert len(document["logs"]) == 2


def test_standard_input_of_kubectl_is_read(logs: Path) -> None:
    both = b"".join(
        b"[pod/job-%d-abcde/main] %s" % (node, line)
        for node, log in enumerate(sorted((logs / "two_nodes").iterdir()))
        for line in log.read_bytes().splitlines(keepends=True)
    )
    done = why("-", stdin=both)
    assert done.returncode == 0
    assert b"RuntimeError: corrupt clip in batch 1" in done.stdout
    assert b"pod job-1-abcde" in done.stdout


def test_unknown_is_an_answer_too() -> None:
    done = why("-", stdin=b"ERROR something odd\n")
    assert done.returncode == 0
    assert done.stdout.decode().splitlines()[0] == (
        "cause:      no known cause; first error was -:1: ERROR something odd"
    )


def test_missing_log_is_an_error_of_input() -> None:
    done = why("/nowhere/a.log")
    assert done.returncode == 66
    assert done.stderr.decode().startswith("error: /nowhere/a.log does not exist")


def test_no_log_is_an_error_of_usage() -> None:
    done = why()
    assert done.returncode == 64
    assert b"no log given" in done.stderr


def test_command_imports_no_training_library(logs: Path) -> None:
    code = (
        "import sys; from platform_launch.cli import main;"
        f"main(['why', {str(logs / 'exception_one_rank.log')!r}]);"
        "print(sorted({'torch', 'accelerate', 'deepspeed', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
