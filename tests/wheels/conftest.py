"""What tests of wheels share: values of a machine, and a DeepSpeed that compiles in a second."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from platform_launch.wheels import build_wheel, installing
from platform_launch.wheels.machine import Interpreter, Torch, query_compiler, query_interpreter
from tests.lab.in_process import run_in_process
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


_ANSWERS: dict[str, Any] = {}


def _asked_once(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Ask this machine once for all tests: an import of torch takes seconds of processor time."""

    def answer(about: Any, env: Mapping[str, str]) -> Any:
        question = repr((ask.__name__, about, env.get("CXX")))
        if question not in _ANSWERS:
            _ANSWERS[question] = ask(about, env)
        return _ANSWERS[question]

    return answer


@pytest.fixture(scope="session")
def this() -> Interpreter:
    """What the interpreter of the tests is; ``wheel`` gives commands the same answer."""
    found: Interpreter = _asked_once(query_interpreter)(sys.executable, dict(os.environ))
    return found


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``platform-launch wheel …`` in a folder with a space in its name.

    ``as_process`` for a build, which handles signals, and for a stand-in for the driver.
    """
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.setattr(installing, "query_interpreter", _asked_once(query_interpreter))
    monkeypatch.setattr(build_wheel, "query_interpreter", _asked_once(query_interpreter))
    monkeypatch.setattr(build_wheel, "query_compiler", _asked_once(query_compiler))

    def run(
        *arguments: str, timeout_s: float = LIMIT_S, as_process: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        ours = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DS_") and name not in ("TORCH_CUDA_ARCH_LIST", "CXX", "CC")
        }
        env = {**ours, "PYTHONPATH": str(ROOT), **FOR_THE_CPU, **variables}
        if not as_process:
            return run_in_process(["wheel", *arguments], env, folder)
        return subprocess.run(
            [sys.executable, "-m", "platform_launch", "wheel", *arguments],
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
