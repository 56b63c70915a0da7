"""What stands around the code: workflows, release notes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "docs" / "release_notes.py"


def test_the_workflows_are_what_github_takes() -> None:
    checker = shutil.which("check-jsonschema", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if checker is None:
        pytest.skip("check-jsonschema is not installed (the dev extra brings it)")
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 3
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.github-workflows", *workflows],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_actions_are_pinned_by_their_hash() -> None:
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = [
        line.split("uses:")[1].split()[0] for text in texts for line in text.splitlines() if "uses:" in line
    ]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


def test_a_release_says_what_changed() -> None:
    done = subprocess.run([sys.executable, NOTES, "v0.1.0"], capture_output=True, text=True, check=True)
    assert "start_multinode_platform.sh" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("## ")]


@pytest.mark.parametrize("tag", ["v9.9.9", "v0.1"])
def test_a_tag_without_a_section_makes_no_release(tag: str) -> None:
    done = subprocess.run([sys.executable, NOTES, tag], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"has no section {tag.removeprefix('v')}" in done.stderr
