"""A wheel of the real DeepSpeed with its smallest op: built from its source, installed, trained with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from platform_launch.wheels import note
from tests.lab.needs import Need, requires_index
from tests.lab.waiting import LIMIT_S
from tests.wheels.conftest import FOR_THE_CPU, Run

# Adagrad's first steps on a small regression, by the compiled op; no compiler is within reach.
TRAINING = """\
import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.git_version_info import installed_ops

assert installed_ops["cpu_adagrad"], installed_ops
torch.manual_seed(0)
inputs = torch.randn(256, 64)
targets = inputs @ torch.randn(64, 1)
model = torch.nn.Linear(64, 1)
optimizer = DeepSpeedCPUAdagrad(model.parameters(), lr=0.5)
losses = []
for _ in range(50):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(losses[0], losses[-1])
"""


def clean_environment(folder: Path) -> Path:
    """A virtual environment with every package of this one but DeepSpeed; return its interpreter."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # .pth files belong to this environment alone: editable installs, import hooks.
        if not entry.name.startswith("deepspeed") and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


requires_compiler = Need("a C++ compiler", lambda: "" if shutil.which("c++") else "needs g++").mark


@pytest.mark.nightly
@requires_compiler
@requires_index
def test_a_wheel_with_cpu_adagrad_trains_where_nothing_can_be_compiled(wheel: Run, tmp_path: Path) -> None:
    # The same build in an eighth of the time: the last flag of a kind counts, and torch leaves out headers
    # that its own Inductor does without. The trial of the compiler needs none of them.
    hurried = tmp_path / "hurry-c++"
    hurried.write_text(
        '#!/bin/sh\ncase " $* " in *" -fsyntax-only "*) exec c++ "$@" ;; esac\n'
        'exec c++ "$@" -O0 -g0 -DTORCH_INDUCTOR_CPP_WRAPPER -include torch/types.h\n'
    )
    hurried.chmod(0o755)
    built = wheel(
        *("build", "--ops", "cpu_adagrad,utils", "--output", "dist"),
        as_process=True,
        CXX=str(hurried),
        timeout_s=3 * LIMIT_S,
    )
    assert built.returncode == 0, built.stderr
    path = Path(built.stdout.strip())
    assert note.read(path).ops == ("cpu_adagrad",)

    python = clean_environment(tmp_path / "clean env")
    without = wheel("check", "--python", str(python), as_process=True)
    assert without.returncode == 67
    assert "has no deepspeed" in without.stderr

    installed = wheel("install", str(path), "--python", str(python), as_process=True)
    assert installed.returncode == 0, installed.stderr
    checked = wheel("check", "--python", str(python), "--format", "json", as_process=True)
    report = json.loads(checked.stdout)
    assert report["ops"]["cpu_adagrad"] == "compiled"
    assert report["ops"]["cpu_lion"] == "at run time"
    assert "not compiled" in checked.stderr

    extensions = tmp_path / "compiled at run time"
    trained = subprocess.run(
        [str(python), "-c", TRAINING],
        cwd=tmp_path,
        env={
            **FOR_THE_CPU,
            "PATH": "/nowhere",
            "HOME": str(tmp_path),
            "TORCH_EXTENSIONS_DIR": str(extensions),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr
    first, last = map(float, trained.stdout.splitlines()[-1].split())
    assert last < 0.5 * first
    assert not extensions.exists()
