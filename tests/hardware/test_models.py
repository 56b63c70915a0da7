"""GPUs that ``--assume-gpus`` pretends."""

from __future__ import annotations

import pytest

from platform_launch.errors import UsageError
from platform_launch.hardware.models import parse


@pytest.mark.parametrize(
    ("text", "count", "name", "memory_gib", "capability"),
    [
        ("8xH100", 8, "NVIDIA H100 80GB HBM3", 79.6, (9, 0)),
        ("8xh100", 8, "NVIDIA H100 80GB HBM3", 79.6, (9, 0)),
        ("8xA100-80GB", 8, "NVIDIA A100-SXM4-80GB", 80.0, (8, 0)),
        ("8 x a100 80gb", 8, "NVIDIA A100-SXM4-80GB", 80.0, (8, 0)),
        ("4xA100-40GB", 4, "NVIDIA A100-SXM4-40GB", 40.0, (8, 0)),
        ("4xGB200", 4, "NVIDIA GB200", 185.0, (10, 0)),
        ("2xRTX 4090", 2, "NVIDIA GeForce RTX 4090", 24.0, (8, 9)),
        ("2xrtx4090", 2, "NVIDIA GeForce RTX 4090", 24.0, (8, 9)),
        (" 16xV100 ", 16, "Tesla V100-SXM2-32GB", 32.0, (7, 0)),
    ],
)
def test_named_gpus_have_their_usual_size(
    text: str, count: int, name: str, memory_gib: float, capability: tuple[int, int]
) -> None:
    gpus = parse(text)
    assert [gpu.index for gpu in gpus.devices] == list(range(count))
    assert {gpu.name for gpu in gpus.devices} == {name}
    assert gpus.devices[0].memory_gib == pytest.approx(memory_gib, abs=0.1)
    assert gpus.devices[0].compute_capability == capability
    assert len({gpu.uuid for gpu in gpus.devices}) == count
    assert gpus.source == f"--assume-gpus {text}"


def test_a_bare_count_pretends_gpus_of_no_particular_kind() -> None:
    gpus = parse("4")
    assert len(gpus.devices) == 4
    assert (gpus.devices[0].memory_gib, gpus.devices[0].compute_capability) == (None, None)


@pytest.mark.parametrize("text", ["0", "cpu", "CPU", "0xH100"])
def test_no_gpus_can_be_pretended_too(text: str) -> None:
    assert parse(text).devices == ()


@pytest.mark.parametrize("text", ["", "H100", "8x", "x8", "-1", "8,H100", "65", "9999xH100", "10000000", "٤"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert repr(text) in raised.value.message
    assert "8xH100" in raised.value.hint


def test_an_unknown_name_is_refused_with_those_known() -> None:
    with pytest.raises(UsageError, match=r"no GPU called 'foo' is known here; known are H100, H200, H800"):
        parse("8xFoo")
