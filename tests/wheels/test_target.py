"""For which backend and GPUs a wheel is built."""

from __future__ import annotations

import dataclasses

import pytest

from platform_launch.errors import InstallationError, UsageError
from platform_launch.wheels.architectures import Architecture, arch_list, parse
from platform_launch.wheels.machine import Torch
from platform_launch.wheels.target import choose
from tests.wheels.conftest import CPU_TORCH, CUDA_TORCH

H100S = [(9, 0)] * 8


def test_a_cpu_build_of_torch_gives_a_cpu_wheel() -> None:
    target = choose(CPU_TORCH, [], wanted=None)
    assert (target.backend, target.architectures, target.warning) == ("cpu", (), "")


def test_a_cpu_build_of_torch_beside_gpus_is_told() -> None:
    assert "this machine has GPUs" in choose(CPU_TORCH, H100S, wanted=None).warning


def test_auto_takes_the_gpus_of_this_machine() -> None:
    target = choose(CUDA_TORCH, [*H100S, (8, 0)], wanted=None)
    assert (target.backend, arch_list(target.architectures)) == ("cuda", "8.0;9.0")
    assert "NVML" in target.source


def test_a_login_node_without_gpus_builds_for_the_architectures_named() -> None:
    target = choose(CUDA_TORCH, [], wanted=parse("A100;9.0+PTX"))
    assert (target.backend, arch_list(target.architectures)) == ("cuda", "8.0;9.0+PTX")


def test_auto_without_gpus_is_refused_instead_of_guessed() -> None:
    with pytest.raises(UsageError, match="finds no GPU here") as raised:
        choose(CUDA_TORCH, [], wanted=None)
    assert "--arch H100" in raised.value.hint


def test_the_users_arch_list_holds_against_the_gpus_but_not_against_the_flag() -> None:
    target = choose(CUDA_TORCH, H100S, wanted=None, arch_list="8.0 8.6;9.0+PTX")
    assert (arch_list(target.architectures), target.source) == ("8.0;8.6;9.0+PTX", "TORCH_CUDA_ARCH_LIST")
    assert arch_list(choose(CUDA_TORCH, H100S, wanted=parse("9.0"), arch_list="8.0").architectures) == "9.0"


def test_the_users_backend_holds() -> None:
    assert choose(CUDA_TORCH, H100S, wanted=None, accelerator="cpu").backend == "cpu"


@pytest.mark.parametrize(
    ("torch", "wanted", "accelerator", "said"),
    [
        (CPU_TORCH, parse("9.0"), None, "is a CPU build"),
        (CPU_TORCH, None, "cuda", "DS_ACCELERATOR=cuda requests GPU code, but torch .* is a CPU build"),
        (CUDA_TORCH, parse("9.0"), "cpu", "DS_ACCELERATOR=cpu"),
        (CUDA_TORCH, None, "npu; id", "DS_ACCELERATOR='npu; id'"),
    ],
)
def test_contradictions_are_refused(
    torch: Torch, wanted: tuple[Architecture, ...] | None, accelerator: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        choose(torch, [], wanted=wanted, accelerator=accelerator)


def test_rocm_is_refused() -> None:
    with pytest.raises(InstallationError, match="ROCm"):
        choose(dataclasses.replace(CPU_TORCH, hip="6.2"), [], wanted=None)
