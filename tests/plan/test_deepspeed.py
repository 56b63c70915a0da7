from __future__ import annotations

import json
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.plan.deepspeed import read_yaml

GOOD = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_multinode_launcher: standard\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "accelerate.yaml"
    path.write_text(text)
    return path


def with_json(folder: Path, config: object, extra: str = "") -> Path:
    file = folder / "ds.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return write(folder, f"{GOOD}  deepspeed_config_file: {file}\n{extra}")


def test_a_good_yaml_tells_the_accumulation(tmp_path: Path) -> None:
    path = write(
        tmp_path, f"{GOOD}  zero_stage: 2\n  gradient_accumulation_steps: 4\nmixed_precision: bf16\n"
    )
    yaml = read_yaml(path, nnodes=2, world_size=16)
    assert yaml.gradient_accumulation_steps == 4
    assert yaml.uses_deepspeed
    assert yaml.warnings == ()


@pytest.mark.parametrize("launcher", ["", "  deepspeed_multinode_launcher: pdsh\n"])
def test_without_the_standard_launcher_several_nodes_are_refused(tmp_path: Path, launcher: str) -> None:
    path = write(tmp_path, f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n{launcher}")
    with pytest.raises(InputError, match="each node would train alone") as refused:
        read_yaml(path, nnodes=2, world_size=16)
    assert "standard" in refused.value.hint
    assert "refused on several" in read_yaml(path, nnodes=1, world_size=8).warnings[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "expected a mapping"),
        ("a: [\n", "line 2 is not YAML"),
        ("zero_optimization: {stage: 2}\n", "no distributed_type"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: 3\n", "expected a mapping"),
        (f"{GOOD}  gradient_accumulation_steps: 0\n", "at least 1"),
        (f"{GOOD}  gradient_accumulation_steps: two\n", "'two'"),
    ],
)
def test_what_is_not_an_accelerate_yaml_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_yaml(write(tmp_path, text), nnodes=1, world_size=1)


def test_a_missing_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml does not exist"):
        read_yaml(tmp_path / "nowhere.yaml", nnodes=1, world_size=1)


def test_a_yaml_without_deepspeed_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "distributed_type: MULTI_GPU\n")
    assert not read_yaml(path, nnodes=4, world_size=32).uses_deepspeed


@pytest.mark.parametrize("kind", ["'NO'", "MULTI_CPU"])
def test_types_that_train_each_node_alone_are_refused_on_several(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, f"distributed_type: {kind}\n")
    with pytest.raises(InputError, match="on 2 nodes accelerate would train on each node alone"):
        read_yaml(path, nnodes=2, world_size=2)
    assert not read_yaml(path, nnodes=1, world_size=1).uses_deepspeed


def test_batch_arithmetic_that_deepspeed_rejects_is_refused_with_the_product(tmp_path: Path) -> None:
    path = with_json(
        tmp_path,
        {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    )
    with pytest.raises(InputError, match=r"train_batch_size 100 is not .* = 128"):
        read_yaml(path, nnodes=2, world_size=16)
    path = with_json(tmp_path, {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4})
    with pytest.raises(InputError, match="cannot be divided by 64"):
        read_yaml(path, nnodes=2, world_size=16)


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4},
        {"train_batch_size": 32},
        {},
    ],
)
def test_batch_arithmetic_that_deepspeed_takes_is_taken(tmp_path: Path, config: object) -> None:
    assert read_yaml(with_json(tmp_path, config), nnodes=2, world_size=16).names_json


def test_keys_that_accelerate_wants_in_the_json_are_refused_beside_it(tmp_path: Path) -> None:
    path = with_json(tmp_path, {}, "  zero_stage: 3\nmixed_precision: bf16\n")
    with pytest.raises(InputError, match="sets zero_stage, mixed_precision beside deepspeed_config_file"):
        read_yaml(path, nnodes=2, world_size=16)


@pytest.mark.parametrize(
    ("content", "said"), [("{", "cannot be read as JSON"), ("[]", "expected a JSON object")]
)
def test_a_json_that_is_none_is_refused(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_yaml(with_json(tmp_path, content), nnodes=1, world_size=1)


def test_a_json_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD}  deepspeed_config_file: nowhere.json\n")
    with pytest.raises(InputError, match=r"'nowhere\.json', which does not exist"):
        read_yaml(path, nnodes=1, world_size=1)
