"""What is sent to other nodes, and what must not be."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.plan.launch_plan import build_plan
from platform_launch.plan.request import Request
from platform_launch.project import project_root
from platform_launch.rendezvous.fingerprint import Fingerprint, arguments, fingerprint_of, hash_of, shareable
from platform_launch.rendezvous.messages import decode, encode
from platform_launch.rendezvous.verdict import differences, judge
from tests.plan.machines import machine
from tests.rendezvous.nodes import fingerprint


@pytest.mark.parametrize(
    "name", ["NCCL_API_KEY", "TORCH_HUB_TOKEN", "DS_SECRET", "ACCELERATE_PASSWORD", "UCX_AUTH", "FI_COOKIE"]
)
def test_variable_with_a_secret_name_is_not_sent(name: str) -> None:
    assert shareable({name: "hunter2"}) == {}


@pytest.mark.parametrize("value", ["https://me:hunter2@example.org/x", "Bearer abc", "-----BEGIN KEY-----"])
def test_value_that_looks_secret_is_not_sent(value: str) -> None:
    assert shareable({"NCCL_CONF_FILE": value}) == {}


def test_only_variables_of_training_libraries_are_compared() -> None:
    variables = {"NCCL_IB_TC": "106", "HOME": "/root", "AWS_PROFILE": "x", "WANDB_MODE": "online"}
    assert shareable(variables) == {"NCCL_IB_TC": "106"}


def test_values_that_differ_on_healthy_nodes_are_not_compared() -> None:
    assert shareable({"CUDA_VISIBLE_DEVICES": "0,1", "TORCH_FR_DUMP_TEMP_FILE": "/logs/flight_1"}) == {}


def test_long_value_is_cut() -> None:
    assert len(shareable({"NCCL_IB_HCA": "mlx5_0," * 100})["NCCL_IB_HCA"]) == 160


def test_fingerprint_is_decoded_unchanged() -> None:
    sent = fingerprint(3, 4, facts={"GPU kind": "NVIDIA H100 80GB HBM3 – «ü»"})
    assert decode(encode(sent), Fingerprint) == sent


def test_files_are_compared_by_content(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert hash_of(tmp_path / "a.py") == hash_of(tmp_path / "b.py")
    (tmp_path / "b.py").write_text("x = 2\n")
    assert hash_of(tmp_path / "a.py") != hash_of(tmp_path / "b.py")
    assert hash_of(tmp_path / "none.py") == "No such file or directory"


def taken(**what: Any) -> Fingerprint:
    """The fingerprint of a node that runs something."""
    root = project_root()
    fields = {"arguments": (), **what}
    asked = Request(root, sys.executable, "/local", "now", root / "logs", launcher="python", **fields)
    if asked.arguments:
        asked = dataclasses.replace(asked, launcher=None)
    plan = build_plan(Environment({"PATH": os.environ["PATH"]}), machine(0), asked)
    return fingerprint_of(plan, {}, identity="x", versions={}, git_revision=None, free_gib=None)


def test_modules_are_compared_by_name_and_file_and_commands_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name in ("train", "other"):
        (tmp_path / "pkg" / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    (tmp_path / "job.sh").chmod(0o755)
    train, other = taken(module="pkg.train"), taken(module="pkg.other")
    assert (train.facts["program"], other.facts["program"]) == ("pkg.train", "pkg.other")
    assert train.facts["script"] == other.facts["script"] == hash_of(tmp_path / "pkg" / "train.py")
    assert train.paths["script"] == str(tmp_path / "pkg" / "train.py")
    script = taken(script=tmp_path / "pkg" / "train.py")
    assert (script.facts["program"], script.facts["script"]) == ("script", train.facts["script"])
    command, own = taken(arguments=("env", "A=1")), taken(arguments=("./job.sh",))
    assert (command.facts["program"], command.facts["script"]) == ("env", "none")
    assert (own.facts["program"], own.facts["script"]) == ("job.sh", hash_of(tmp_path / "job.sh"))


def test_arguments_are_compared_by_option_without_secrets_and_ranks() -> None:
    words = [
        *(
            "train.yaml",
            "--lr",
            "1e-4",
            "--seed=2",
            "--node_rank",
            "1",
            "--machine-rank=1",
            "--betas",
            "0.9",
            "0.95",
        ),
        *("--shift", "-1.5", "--fp16", "--wandb-key", "0123456789abcdef0123", "last"),
    ]
    assert arguments(words) == {
        "1": "train.yaml",
        "--lr": "1e-4",
        "--seed": "2",
        "--betas": "0.9 0.95",
        "--shift": "-1.5",
        "--fp16": "given",
        "--wandb-key": "*** last",
    }


def test_different_seed_is_a_warning_not_a_refusal() -> None:
    nodes = [
        fingerprint(rank, facts={f"argument --{name}": value for name, value in given.items()})
        for rank, given in enumerate(({"seed": "1"}, {"seed": "2", "lr": "1e-3"}))
    ]
    judged = judge(nodes, {})
    assert judged.refusal is None
    assert "argument --seed: 1 on node 0; 2 on node 1" in judged.warnings
    assert "argument --lr: not set on node 0; 1e-3 on node 1" in judged.warnings


def of_node(rank: int, *words: str) -> Fingerprint:
    """The fingerprint of one of two nodes, gn0 and gn1, that run a script with these arguments."""
    root = project_root()
    asked = Request(
        *(root, sys.executable, "/local", "now", root / "logs"),
        launcher="python",
        script=Path(__file__),
        arguments=words,
    )
    variables = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    hardware = machine(0)
    hardware = dataclasses.replace(hardware, host=dataclasses.replace(hardware.host, hostname=f"gn{rank}"))
    plan = build_plan(Environment(variables), hardware, asked)
    return fingerprint_of(plan, {}, identity=f"{rank}", versions={}, git_revision=None, free_gib=None)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (("/data0/out1/node{rank}",), True),
        (("--model", "llama-1-7b", "--workers", "1"), True),
        (("--log", "/logs/{host}.txt", "--seed=1"), True),
        (("--seed", "{rank}"), False),
        (("--config", "{rank}5.yaml"), False),
    ],
)
def test_arguments_that_name_the_node_do_not_mean_another_job(words: tuple[str, ...], *, same: bool) -> None:
    nodes = [of_node(rank, *(w.format(rank=rank, host=f"gn{rank}") for w in words)) for rank in (0, 1)]
    assert nodes[0].may_be_of_another_job(nodes[1]) is not same
    assert not same or not any(d.name.startswith("argument") for d in differences(nodes))
