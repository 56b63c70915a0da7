"""Standard streams that an image replaced, or that were closed when a command was started."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.cli import main
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[1]
MAIN = ROOT / "platform_launch" / "__main__.py"
WRITERS = """
import sys
class Writer:
    def __init__(self, stream):
        self.write, self.flush = stream.write, stream.flush
sys.stdin, sys.stdout, sys.stderr = None, Writer(sys.stdout), Writer(sys.stderr)
"""


def topology(*redirected: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = " ".join(('exec "$0" "$@"', *redirected))
    return subprocess.run(
        ["sh", "-c", line, sys.executable, str(MAIN), "topology"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_objects_of_an_image_that_only_write_give_way_to_the_streams_of_python(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRITERS)
    done = topology(PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("platform ")
    refused = topology("--no-such-option", PYTHONPATH=str(tmp_path))
    assert refused.returncode == 64
    assert refused.stderr.startswith("error: ")


def test_a_program_that_calls_a_command_keeps_the_streams_that_it_put_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answered = io.StringIO("ValueError: no batch left\n"), io.StringIO()
    monkeypatch.setattr(sys, "stdin", asked)
    monkeypatch.setattr(sys, "stdout", answered)
    main(["why", "-"])
    assert (sys.stdin, sys.stdout) == (asked, answered)
    assert "ValueError: no batch left" in answered.getvalue()


@pytest.mark.parametrize(
    ("closed", "opening"), [("<&-", "platform "), (">&-", ""), ("2>&-", "platform "), ("<&- >&- 2>&-", "")]
)
def test_a_command_works_without_the_descriptors_of_its_streams(closed: str, opening: str) -> None:
    done = topology(closed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout[: len("platform ")] == opening


def test_a_helper_reads_its_input_where_an_image_took_it_away() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.stdin = None\n"
        "from platform_launch import streams\n"
        "streams.ensure(of_helper=True); print(sys.stdin.buffer.readline())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)],
        input=b"task\n",
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == b"b'task\\n'\n"
