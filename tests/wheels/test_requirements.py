"""What a build needs, compared with what a machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.wheels.architectures import parse
from platform_launch.wheels.machine import Compiler, Interpreter, Toolkit
from platform_launch.wheels.requirements import Requirement, default_jobs, requirements
from platform_launch.wheels.target import Target
from tests.wheels.conftest import CPU_TORCH, CUDA_TORCH, interpreter

CPU = Target("cpu", (), "torch")
GCC_12 = Compiler("c++", "gcc", (12, 2, 0), "")
NVCC_13 = Toolkit(
    Path("/usr/local/cuda/bin/nvcc"), "13.0", frozenset({"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"})
)


def check(
    name: str,
    python: Interpreter | None = None,
    compiler: Compiler = GCC_12,
    toolkit: Toolkit | None = NVCC_13,
    target: Target = CPU,
    free_gib: float = 100,
) -> Requirement:
    found = requirements(
        python or interpreter(CPU_TORCH if target is CPU else CUDA_TORCH),
        compiler,
        toolkit,
        target,
        ops=("cpu_adam", "utils"),
        free_gib=free_gib,
        folder="/tmp",
    )
    return next(requirement for requirement in found if requirement.name == name)


def cuda(arch: str) -> Target:
    return Target("cuda", parse(arch), "--arch")


@pytest.mark.parametrize("target", [CPU, cuda("8.0;9.0")])
def test_a_machine_that_has_all_meets_all(target: Target) -> None:
    python = interpreter(CPU_TORCH if target is CPU else CUDA_TORCH)
    found = requirements(python, GCC_12, NVCC_13, target, ops=("cpu_adam",), free_gib=100, folder="/tmp")
    assert [requirement.name for requirement in found if not requirement.met] == []
    assert ("CUDA toolkit" in {requirement.name for requirement in found}) is (target is not CPU)


def test_an_old_setuptools_needs_the_package_wheel() -> None:
    old = {"pip": "22.0", "setuptools": "59.6.0"}
    requirement = check("build tools", interpreter(packages=old))
    assert not requirement.met
    assert requirement.mend == "/opt/train/bin/python -m pip install wheel"
    assert check("build tools", interpreter(packages={**old, "wheel": "0.37"})).met


def test_python_without_headers_names_their_package() -> None:
    requirement = check("Python headers", interpreter(headers=None))
    assert not requirement.met
    assert "python3.11-dev" in requirement.mend


@pytest.mark.parametrize(
    ("compiler", "target", "met"),
    [
        (Compiler("c++", "gcc", (4, 8, 5), ""), CPU, False),
        (Compiler("c++", "gcc", (16, 1, 0), ""), CPU, True),
        (Compiler("c++", "gcc", (15, 2, 0), ""), cuda("9.0"), True),
        (Compiler("c++", "gcc", (16, 0, 0), ""), cuda("9.0"), False),
        (Compiler("clang++", "clang", (21, 1, 0), ""), cuda("9.0"), False),
        (Compiler("c++", "gcc", (12, 2, 0), "omp.h: No such file"), CPU, False),
        (Compiler("g++-99", "", (), "g++-99: No such file or directory"), CPU, False),
    ],
)
def test_the_compiler_must_lie_within_torchs_bounds_and_work(
    compiler: Compiler, target: Target, met: bool
) -> None:
    requirement = check("C++ compiler", compiler=compiler, target=target)
    assert requirement.met is met
    assert compiler.problem in requirement.found


def test_the_bounds_of_cuda_are_named() -> None:
    requirement = check("C++ compiler", compiler=Compiler("c++", "gcc", (16, 0, 0), ""), target=cuda("9.0"))
    assert "below 16.0 for CUDA 13.0" in requirement.expected


@pytest.mark.parametrize(
    ("toolkit", "found"),
    [
        (None, "no CUDA_HOME"),
        (Toolkit(Path("/opt/cuda/bin/nvcc")), "/opt/cuda/bin/nvcc does not run"),
        (Toolkit(Path("/opt/cuda/bin/nvcc"), "12.8"), "/opt/cuda/bin/nvcc 12.8"),
    ],
)
def test_a_toolkit_that_is_not_torchs_is_refused(toolkit: Toolkit | None, found: str) -> None:
    requirement = check("CUDA toolkit", toolkit=toolkit, target=cuda("9.0"))
    assert (requirement.met, requirement.found) == (False, found)
    assert "nvcc 13.0" in requirement.expected


def test_a_toolkit_of_another_minor_version_will_do() -> None:
    assert check("CUDA toolkit", toolkit=Toolkit(NVCC_13.nvcc, "13.1"), target=cuda("9.0")).met


def test_an_architecture_that_the_toolkit_does_not_know_is_named() -> None:
    requirement = check("architectures", target=cuda("7.0;9.0"))
    assert not requirement.met
    assert requirement.mend.startswith("leave 7.0 out")


def test_a_full_disk_is_found_before_and_gpu_code_needs_more_of_it() -> None:
    assert check("disk", free_gib=0.5).met
    assert not check("disk", free_gib=0.5, target=cuda("8.0;9.0")).met
    assert not check("disk", free_gib=0.1).met


def test_ninja_is_required_with_the_command_that_installs_it() -> None:
    requirement = check("ninja", interpreter(ninja=None))
    assert (requirement.met, requirement.mend) == (False, "/opt/train/bin/python -m pip install ninja")


@pytest.mark.parametrize(
    ("backend", "cpus", "memory_gib", "jobs"),
    [
        ("cpu", 2.0, 23.0, 2),
        ("cpu", 64.0, 16.0, 8),
        ("cuda", 64.0, 16.0, 4),
        ("cpu", 0.5, 1.0, 1),
        ("cuda", 8.0, None, 8),
    ],
)
def test_as_many_compilers_as_processors_and_memory_allow(
    backend: str, cpus: float, memory_gib: float | None, jobs: int
) -> None:
    assert default_jobs(backend, cpus, memory_gib) == jobs
