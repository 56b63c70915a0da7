"""Helper processes start in one way, and what libraries print stays out of their messages."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from platform_launch import helper
from tests.lab.waiting import LIMIT_S


@pytest.mark.parametrize("module", helper.HELPERS.values())
def test_every_helper_has_its_main(module: str) -> None:
    assert callable(import_module(module).main)


def test_what_lies_in_the_working_directory_shadows_no_helper(tmp_path: Path) -> None:
    for name in ("platform_launch.py", "json.py", "click.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    (tmp_path / "platform_launch").mkdir()
    (tmp_path / "platform_launch" / "__init__.py").write_text("raise SystemExit('shadowed')")
    argv = helper.command(
        "side-by-side", "A=1,2", "--", sys.executable, "-I", "-c", "import os; print(os.environ['A'])"
    )
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["1", "2"]), done.stderr


def test_a_name_that_no_helper_has_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="no helper is called 'nobody'"):
        helper.command("nobody")


def test_what_a_library_prints_does_not_come_among_the_messages() -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from platform_launch.helper import MessageOutlet\n"
        "print('a greeting of the image', end='', flush=True)\n"
        "outlet = MessageOutlet()\n"
        "print('a banner of a library', flush=True)\n"
        "os.system('echo a child of it')\n"
        "for line in sys.stdin.buffer: outlet.send(b'heard ' + line.strip())\n"
    )
    root = str(helper.PACKAGE.parent)
    done = subprocess.run(
        [sys.executable, "-c", code, root],
        input="ä\nö\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.splitlines() == ["a greeting of the image", "heard ä", "heard ö"]
    assert "a banner of a library" in done.stderr
    assert "a child of it" in done.stderr


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ('{"torch": "2.13.0"}', '{"torch": "2.13.0"}'),
        ('welcome\n[INFO] 3 modules\n{"a": 1}\n', '{"a": 1}'),
        ('["PartAnswer", {}]\n{"printed": "at its end"}\n', '["PartAnswer", {}]'),
        ("{begun\n" + "[" * 100_000 + "\n[1]", "[1]"),
        ('17\n"text"\nnull\n', ""),
        ("", ""),
    ],
)
def test_the_answer_is_the_first_object_or_array(output: str, answer: str) -> None:
    assert helper.answer_line(output) == answer
