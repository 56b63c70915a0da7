"""What travels to other nodes, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.rollcall import lines
from platform_launch.rollcall.fingerprint import Fingerprint, hash_of, shareable
from tests.rollcall.nodes import fingerprint


@pytest.mark.parametrize(
    "name", ["NCCL_API_KEY", "TORCH_HUB_TOKEN", "DS_SECRET", "ACCELERATE_PASSWORD", "UCX_AUTH", "FI_COOKIE"]
)
def test_a_variable_that_sounds_secret_stays_here(name: str) -> None:
    assert shareable({name: "hunter2"}) == {}


@pytest.mark.parametrize("value", ["https://me:hunter2@example.org/x", "Bearer abc", "-----BEGIN KEY-----"])
def test_a_value_that_looks_secret_stays_here(value: str) -> None:
    assert shareable({"NCCL_CONF_FILE": value}) == {}


def test_only_what_training_libraries_read_is_compared() -> None:
    variables = {"NCCL_IB_TC": "106", "HOME": "/root", "AWS_PROFILE": "x", "WANDB_MODE": "online"}
    assert shareable(variables) == {"NCCL_IB_TC": "106"}


def test_what_differs_on_healthy_nodes_is_not_compared() -> None:
    assert shareable({"CUDA_VISIBLE_DEVICES": "0,1", "TORCH_FR_DUMP_TEMP_FILE": "/logs/flight_1"}) == {}


def test_a_long_value_is_cut() -> None:
    assert len(shareable({"NCCL_IB_HCA": "mlx5_0," * 100})["NCCL_IB_HCA"]) == 160


def test_a_fingerprint_survives_the_way() -> None:
    sent = fingerprint(3, 4, facts={"GPU kind": "NVIDIA H100 80GB HBM3 – «ü»"})
    assert Fingerprint.from_json(sent.to_json()) == sent


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"node_rank": 1}', "null", '{"surprise": 1}'])
def test_anything_else_is_not_a_fingerprint(text: str) -> None:
    with pytest.raises(ValueError, match="not a fingerprint"):
        Fingerprint.from_json(text)


def test_files_are_compared_by_content(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert hash_of(tmp_path / "a.py") == hash_of(tmp_path / "b.py")
    (tmp_path / "b.py").write_text("x = 2\n")
    assert hash_of(tmp_path / "a.py") != hash_of(tmp_path / "b.py")
    assert hash_of(tmp_path / "none.py") == "No such file or directory"


@pytest.mark.parametrize(
    "message",
    [
        lines.Say("WARN", "two\nlines"),
        lines.Ended(1, None, ("a", "b"), ""),
        lines.Settled(0, (), restart=True),
        lines.Alone(),
    ],
)
def test_a_message_is_one_line_and_survives_the_way(message: lines.Message) -> None:
    line = lines.encode(message)
    assert line.count(b"\n") == 1
    assert lines.decode(line) == message


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b'["Nobody", {}]\n', b'["Say", {"level": 1}]\n'])
def test_anything_else_is_not_a_message(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        lines.decode(line)
