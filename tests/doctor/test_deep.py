"""What torch and JAX answer, judged; and probes that do not answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.doctor import deep
from platform_launch.doctor.finding import Level
from tests.doctor.cases import planned
from tests.lab.waiting import LIMIT_S
from tests.plan.machines import machine

EIGHT: dict[str, Any] = {
    "version": "2.6.0+cu124",
    "cuda": "12.4",
    "hip": None,
    "nccl": True,
    "devices": 8,
    "cuda_problem": "",
    "allocation_problems": {},
}


@pytest.mark.parametrize(
    ("changes", "finding_id"),
    [
        ({"import_problem": "OSError: libcudart.so.12"}, "torch-import-failed"),
        ({"cuda_problem": "Error 802: system not yet initialized"}, "cuda-unavailable"),
        ({"devices": 7}, "gpu-count-differs"),
        ({"nccl": False}, "nccl-missing"),
        ({"allocation_problems": {"3": "CUDA error: out of memory"}}, "gpu-allocation-failed"),
    ],
)
def test_what_torch_says_is_wrong_becomes_a_finding(changes: dict[str, Any], finding_id: str) -> None:
    assert [finding.id for finding in deep.of_torch({**EIGHT, **changes}, gpus=8)] == [finding_id]


def test_a_torch_that_uses_every_gpu_gives_no_finding() -> None:
    assert list(deep.of_torch(EIGHT, gpus=8)) == []


def test_a_torch_without_cuda_is_judged_by_the_cheap_check_alone() -> None:
    cpu = {**EIGHT, "cuda": None, "devices": 0, "nccl": False}
    assert list(deep.of_torch(cpu, gpus=8)) == []


@pytest.mark.parametrize(
    ("said", "gpus", "ids"),
    [
        ({"version": "0.10", "backend": "gpu", "devices": 8, "device_problem": ""}, 8, ["jax-uses"]),
        ({"version": "0.10", "backend": "cpu", "devices": 1, "device_problem": ""}, 0, ["jax-uses"]),
        ({"version": "0.10", "backend": "cpu", "devices": 1, "device_problem": ""}, 8, ["jax-devices"]),
        ({"version": "0.10", "device_problem": "Unknown backend"}, 8, ["jax-devices"]),
        ({"import_problem": "ModuleNotFoundError: No module named 'jax'"}, 8, ["jax-import-failed"]),
    ],
)
def test_what_jax_says_is_judged(said: dict[str, Any], gpus: int, ids: list[str]) -> None:
    assert [finding.id for finding in deep.of_jax(said, gpus)] == ids


def hanging(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "torch.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_a_torch_that_hangs_is_given_up(tmp_path: Path) -> None:
    env = hanging(tmp_path, "import time; time.sleep(60)")
    (finding,) = deep.try_library("torch", planned({}, machine(0), python=sys.executable), env, limit_s=1.0)
    assert (finding.id, finding.level) == ("probe-unanswered", Level.ERROR)
    assert "no answer within 1 s" in finding.what


def test_a_torch_that_crashes_is_named(tmp_path: Path) -> None:
    env = hanging(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    (finding,) = deep.try_library(
        "torch", planned({}, machine(0), python=sys.executable), env, limit_s=LIMIT_S
    )
    assert "exit code 132" in finding.what


def test_the_torch_that_is_installed_works() -> None:
    pytest.importorskip("torch", reason="needs torch")
    plan = planned({}, machine(0), python=sys.executable)
    assert deep.try_library("torch", plan, {**os.environ, "CUDA_VISIBLE_DEVICES": ""}) == []
