"""What tests of wheels share: values of a machine, and a DeepSpeed that compiles in a second."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from platform_launch.cli import main
from platform_launch.wheels.machine import Interpreter, Torch
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]

CPU_TORCH = Torch("2.13.0+cpu", None, cxx11_abi=True, bounds={"gcc": ((5, 0, 0), None)})
CUDA_TORCH = Torch(
    "2.13.0+cu130",
    "13.0",
    cxx11_abi=True,
    cuda_home=Path("/usr/local/cuda"),
    bounds={"gcc": ((6, 0, 0), (16, 0)), "clang": ((7, 0), (21, 0))},
)


def interpreter(torch: Torch | None = CPU_TORCH, **changes: object) -> Interpreter:
    values: dict[str, object] = {
        "executable": "/opt/train/bin/python",
        "python": "3.11.7",
        "python_tag": "cp311",
        "platform_tag": "linux_x86_64",
        "libc": "glibc 2.36",
        "headers": Path("/opt/train/include/python3.11"),
        "ninja": "/opt/train/bin/ninja",
        "packages": {"pip": "24.0", "setuptools": "75.0.0"},
        "torch": torch,
        **changes,
    }
    return Interpreter(**values)  # type: ignore[arg-type]


def cuda_of_torch() -> str | None:
    """The CUDA version that this interpreter's torch was built for; read without importing torch."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    cuda: str | None = runpy.run_path(str(Path(found.origin).with_name("version.py")))["cuda"]
    return cuda


# With a torch built for CUDA on a machine without GPUs the architecture cannot be guessed: build for the CPU.
FOR_THE_CPU = {"DS_ACCELERATOR": "cpu"} if cuda_of_torch() else {}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run ``platform-launch wheel …`` in a folder with a space in its name.

    A build is a process of its own, as it handles signals, and so is what needs other variables, such as
    those of a stand-in for the driver. Everything else runs in this process.
    """
    folder = tmp_path / "a folder"
    folder.mkdir()

    def run(
        *arguments: str, timeout_s: float = LIMIT_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        ours = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DS_") and name not in ("TORCH_CUDA_ARCH_LIST", "CXX", "CC")
        }
        env = {**ours, "PYTHONPATH": str(ROOT), **FOR_THE_CPU, **variables}
        command = [sys.executable, "-m", "platform_launch", "wheel", *arguments]
        if arguments[:1] != ("build",) and not variables:
            with monkeypatch.context() as inside:
                inside.chdir(folder)
                for name in os.environ.keys() - env.keys():
                    inside.delenv(name)
                for name, value in env.items():
                    inside.setenv(name, value)
                capfd.readouterr()
                code = main(["wheel", *arguments])
            return subprocess.CompletedProcess(command, code, *capfd.readouterr())
        return subprocess.run(
            command,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def tiny_source(tmp_path: Path) -> Path:
    """A source tree with DeepSpeed's way of choosing ops, and a space in its path."""
    return Path(shutil.copytree(Path(__file__).with_name("tiny_deepspeed"), tmp_path / "tiny source"))
