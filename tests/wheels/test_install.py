"""``wheel install`` as a command: what it refuses, on nodes that are not the one the wheel was built on."""

from __future__ import annotations

import dataclasses
import os
import sys
import zipfile
from pathlib import Path

from platform_launch.hardware.host import instructions
from platform_launch.wheels import note
from platform_launch.wheels.machine import Interpreter
from platform_launch.wheels.note import WheelNote
from tests.conftest import FakeNvml
from tests.lab.nvml import fake
from tests.wheels.conftest import Run


def write_wheel(folder: Path, this: Interpreter, **changes: object) -> Path:
    """Write an empty wheel with the note of one built on this very node, save for the changes."""
    assert this.torch is not None
    wheel = folder / "deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("deepspeed-0.19.8.dist-info/RECORD", "")
    built_here = WheelNote(
        wheel=wheel.name,
        deepspeed="0.19.8",
        ops=("cpu_adam",),
        backend="cpu",
        torch=this.torch.version,
        cuda=this.torch.cuda,
        cxx11_abi=this.torch.cxx11_abi,
        python_tag=this.python_tag,
        platform_tag=this.platform_tag,
        libc=this.libc,
        architectures=(),
        compiler="gcc 12.2.0",
        nvcc=None,
        instructions=tuple(sorted(instructions())),
        built="2025-06-01T12:00:00Z",
    )
    note.embed(wheel, dataclasses.replace(built_here, **changes))  # type: ignore[arg-type]
    return wheel


def test_every_reason_against_a_node_is_named_at_once(wheel: Run, tmp_path: Path, this: Interpreter) -> None:
    path = write_wheel(tmp_path, this, python_tag="cp38", torch="1.13.1", instructions=("avx9000",))
    done = wheel("install", str(path))
    assert done.returncode == 67
    assert "was not built for this node" in done.stderr
    assert "the wheel is built for cp38" in done.stderr
    assert "built for 1.13.1" in done.stderr
    assert "avx9000" in done.stderr


def test_a_cpu_wheel_is_refused_where_the_driver_shows_gpus(
    wheel: Run, tmp_path: Path, this: Interpreter, fake_nvml: FakeNvml
) -> None:
    done = wheel("install", str(write_wheel(tmp_path, this)), as_process=True, **fake_nvml(*fake.h100s(2)))
    assert done.returncode == 67
    assert "GPUs: built for the CPU backend" in done.stderr


def test_a_wheel_that_is_none_fails_in_pips_words_under_a_relative_interpreter(
    wheel: Run, tmp_path: Path, this: Interpreter
) -> None:
    (tmp_path / "dist").mkdir()
    path = write_wheel(tmp_path / "dist", this)
    done = wheel("install", str(path), "--python", os.path.relpath(sys.executable, tmp_path / "a folder"))
    assert "pip could not install" in done.stderr, "pip was started, from the wheel's folder"
    assert "invalid" in done.stderr
    assert done.returncode == 67
    assert "Traceback" not in done.stderr
