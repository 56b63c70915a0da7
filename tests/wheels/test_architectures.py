"""GPU architectures: what a user writes, and which GPUs run the result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from platform_launch.errors import UsageError
from platform_launch.hardware.models import CAPABILITIES, capability_of
from platform_launch.wheels.architectures import Architecture, arch_list, of_gpus, parse

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "deepspeed-wheels.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8.0;9.0", "8.0;9.0"),
        ("9.0, 8.0", "8.0;9.0"),
        ("8.0;8.0", "8.0"),
        ("9.0+PTX", "9.0+PTX"),
        ("12.0;10.3", "10.3;12.0"),
        ("H100", "9.0"),
        ("h100;A100;rtx 4090", "8.0;8.9;9.0"),
        ("GB300;DGX Spark", "10.3;12.1"),
        (";8.6;", "8.6"),
    ],
)
def test_a_list_of_numbers_or_names_becomes_torchs_list(text: str, expected: str) -> None:
    assert arch_list(parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["9", "90", "9.0a", "sm_90", "9.0 8.0", "0.1", "9.0+ptx", "٩.0", "H1000", "$(id)", "-O3"]
)
def test_a_malformed_list_is_refused_with_the_word_at_fault(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(f"8.0;{text}")
    assert repr(text) in raised.value.message
    assert "--arch '8.0;9.0'" in raised.value.hint


@pytest.mark.parametrize("text", ["", " ; ", ","])
def test_an_empty_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no architecture"):
        parse(text)


@pytest.mark.parametrize(
    ("architecture", "gpu", "runs"),
    [
        ("8.0", (8, 0), True),
        ("8.0", (8, 6), True),
        ("8.6", (8, 0), False),
        ("8.0", (9, 0), False),
        ("8.0+PTX", (9, 0), True),
        ("9.0+PTX", (8, 9), False),
        ("10.0", (10, 3), True),
        ("10.0", (12, 0), False),
        ("9.0", (10, 0), False),
    ],
)
def test_machine_code_runs_within_its_major_and_ptx_on_all_that_is_newer(
    architecture: str, gpu: tuple[int, int], runs: bool
) -> None:
    assert parse(architecture)[0].runs_on(gpu) is runs


def test_gpus_of_several_kinds_give_each_architecture_once() -> None:
    assert of_gpus([(9, 0), (8, 0), (9, 0)]) == (Architecture(8, 0), Architecture(9, 0))
    assert Architecture(12, 1).machine_code == "sm_121"


@pytest.mark.parametrize("name", ["H100", "h-100", "rtx_5090", "RTX PRO 6000 Blackwell"])
def test_a_model_is_found_however_it_is_written(name: str) -> None:
    assert capability_of(name) is not None


def test_the_guide_lists_every_known_gpu_with_its_architecture() -> None:
    rows = re.findall(r"^\| (\d+\.\d) \| ([^|]+?) \|", GUIDE.read_text(encoding="utf-8"), re.M)
    listed = {model: arch for arch, models in rows for model in models.split(", ")}
    assert listed == {model: f"{major}.{minor}" for model, (major, minor) in CAPABILITIES.items()}
