"""The example images: linted, and their steps run in an environment that has its torch already."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.needs import requires_index
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "examples" / "image"


def steps(recipe: str) -> list[str]:
    """Return the shell commands that a Dockerfile or an Apptainer definition runs."""
    if "%post" in recipe:
        post = recipe.split("%post\n", 1)[1].split("\n%", 1)[0]
        return [line.strip() for line in post.splitlines() if line.strip()]
    joined = recipe.replace("\\\n", " ")
    commands = [line.removeprefix("RUN ") for line in joined.splitlines() if line.startswith("RUN ")]
    return [step.strip() for command in commands for step in command.split("&&")]


def test_the_dockerfile_has_no_finding_of_hadolint() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed (the dev extra brings it)")
    done = subprocess.run([linter, IMAGE / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_both_images_install_the_same_and_start_the_same() -> None:
    docker, apptainer = ((IMAGE / name).read_text() for name in ("Dockerfile", "apptainer.def"))
    assert steps(docker) == steps(apptainer)
    assert 'ENTRYPOINT ["platform-launch", "run"]' in docker
    assert 'exec platform-launch run "$@"' in apptainer
    assert re.search(r"ARG BASE=(\S+)", docker)[1] == re.search(r"From: (\S+)", apptainer)[1]  # type: ignore[index]


@requires_index
def test_the_steps_leave_torch_as_it_is_and_a_launcher_that_starts(tmp_path: Path) -> None:
    """In an environment of its own below which this one lies, as a base image's Python below the launcher."""
    root, environment = tmp_path / "root", tmp_path / "environment"
    (root / "opt").mkdir(parents=True)
    # pip too comes from what lies below.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=LIMIT_S)
    site = next(environment.glob("lib/python*/site-packages"))
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (site / "base_image.pth").write_text("\n".join(theirs) + "\n")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            target = root / "opt" / "platform_launch" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    env = {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    for step in steps((IMAGE / "Dockerfile").read_text()):
        done = subprocess.run(
            ["sh", "-c", step.replace("/opt/", f"{root}/opt/")],
            env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert not list(site.glob("torch-*"))
    shutil.rmtree(root / "opt" / "platform_launch")
    entrypoint = subprocess.run(
        ["platform-launch", "entrypoint"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    script = Path(entrypoint.stdout.strip())
    assert script.is_file()
    assert script.is_relative_to(site)
    assert os.access(script, os.X_OK)
    shown = subprocess.run(
        [script, "--example", "taehv", "--print-env"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert "accelerate.commands.launch" in shown.stdout
