"""Asking interpreter, compiler and CUDA toolkit: real ones, and ones that answer as recorded."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from platform_launch.errors import InstallationError
from platform_launch.wheels.machine import (
    Interpreter,
    query_compiler,
    query_interpreter,
    query_toolkit,
    run_probe,
    version_numbers,
)
from tests.wheels.conftest import CUDA_TORCH, interpreter

ENV = dict(os.environ)


def test_this_interpreter_describes_itself_and_its_torch(this: Interpreter) -> None:
    import torch

    assert this.torch is not None
    assert this.torch.version == torch.__version__
    assert this.torch.release == version_numbers(torch.__version__)[:2]
    assert this.torch.bounds["gcc"][0] >= (5,)
    assert this.python_tag == f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert "pip" in this.packages
    assert this.ninja is not None


def test_the_compiler_of_this_machine_compiles_against_torch(this: Interpreter) -> None:
    compiler = query_compiler(this, ENV)
    assert (compiler.family, compiler.problem) == ("gcc", "")
    assert compiler.version >= (9,)


def test_a_compiler_without_torchs_headers_says_which_is_missing(this: Interpreter) -> None:
    assert this.torch is not None
    without = dataclasses.replace(this, torch=dataclasses.replace(this.torch, include_paths=()))
    assert "c10" in query_compiler(without, ENV).problem


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_compiler_that_is_not_there_is_no_traceback() -> None:
    missing = interpreter(dataclasses.replace(CUDA_TORCH, compiler="/no/such compiler"))
    compiler = query_compiler(missing, ENV)
    assert (compiler.family, compiler.version) == ("", ())
    assert "No such file" in compiler.problem
    unclosed = interpreter(dataclasses.replace(CUDA_TORCH, compiler="g++ -DNAME='x"))
    assert "No closing quotation" in query_compiler(unclosed, ENV).problem


def test_nvcc_is_read_from_its_own_words(tmp_path: Path) -> None:
    # Printed by nvcc 12.8.
    program(
        tmp_path / "cuda home/bin/nvcc",
        'case $1 in --version) echo "Cuda compilation tools, release 12.8, V12.8.93";; '
        "--list-gpu-code) printf 'sm_50\\nsm_90\\nsm_100\\nsm_120\\n';; esac",
    )
    toolkit = query_toolkit(dataclasses.replace(CUDA_TORCH, cuda_home=tmp_path / "cuda home"), ENV)
    assert toolkit is not None
    assert toolkit.release == "12.8"
    assert toolkit.machine_codes == {"sm_50", "sm_90", "sm_100", "sm_120"}


def test_a_runtime_without_nvcc_is_a_toolkit_without_release(tmp_path: Path) -> None:
    toolkit = query_toolkit(dataclasses.replace(CUDA_TORCH, cuda_home=tmp_path), ENV)
    assert toolkit is not None
    assert toolkit.release == ""
    assert query_toolkit(dataclasses.replace(CUDA_TORCH, cuda_home=None), ENV) is None


def test_an_interpreter_that_is_none_is_named_with_the_command_to_try() -> None:
    with pytest.raises(InstallationError, match="cannot list the packages of /no/such/python") as raised:
        query_interpreter("/no/such/python", ENV)
    assert "machine.py" in raised.value.hint


def test_an_interpreter_that_hangs_is_given_up(tmp_path: Path) -> None:
    sleeper = program(tmp_path / "python", "sleep 60")
    with pytest.raises(InstallationError, match=r"no answer within 0\.3 s"):
        run_probe("machine.py", str(sleeper), ENV, timeout_s=0.3)


def test_a_torch_that_does_not_import_is_told_apart_from_none(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    broken = query_interpreter(sys.executable, {**ENV, "PYTHONPATH": str(tmp_path)})
    assert broken.torch is None
    assert "libcudart.so.13" in broken.torch_problem


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.13.0+cpu", (2, 13, 0)), ("12.2.0\n", (12, 2, 0)), ("14", (14,)), ("git", ())]
)
def test_versions_are_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(text) == numbers
