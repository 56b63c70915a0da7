from __future__ import annotations

import json
from importlib.util import find_spec
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
    with pytest.raises(InputError, match="sets both zero_stage, mixed_precision and deepspeed_config_file"):
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


def test_no_is_one_process_quoted_or_not(tmp_path: Path) -> None:
    """An accelerate config written for one GPU, on a node with eight."""
    for text in ("distributed_type: 'NO'\nnum_processes: 1\n", "distributed_type: NO\n"):
        path = write(tmp_path, text)
        with pytest.raises(InputError, match="regardless of num_processes, but 8 are planned"):
            read_yaml(path, nnodes=1, world_size=8)
        assert not read_yaml(path, nnodes=1, world_size=1).uses_torchrun


@pytest.mark.skipif(find_spec("accelerate") is None, reason="only accelerate knows which settings it takes")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("distributed_type: MULTI_GPU\nlr_scheduler: cosine\n", "does not know, and refuses: lr_scheduler"),
        ("distributed_type: FSDP\nfsdp_sharding_strategy: 1\n", "refuses: fsdp_sharding_strategy"),
        ("distributed_type: DEEPSPEED\nzero_stage: 2\nzero3: 1\n", "refuses: zero3, zero_stage"),
        ("distributed_type: multi_gpu\n", "distributed_type 'multi_gpu': the installed accelerate knows"),
        ("distributed_type: DDP\n", "distributed_type 'DDP'"),
        ("distributed_type: 'NO'\ncompute_environment: AMAZON_SAGEMAKER\n", "submits a job"),
        ("distributed_type: MULTI_GPU\nuse_cpu: true\n", "use_cpu is set"),
        ("distributed_type: MULTI_GPU\ngpu_ids: 0,1\n", "gpu_ids 0,1 shows 2 of a node's GPUs to its 8"),
        ("distributed_type: MULTI_GPU\ngpu_ids: '3'\n", "gpu_ids 3 shows 1"),
    ],
)
def test_what_accelerate_would_refuse_or_start_otherwise_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read_yaml(write(tmp_path, text), nnodes=1, world_size=8, gpus=8)


def test_what_accelerate_config_writes_is_taken(tmp_path: Path) -> None:
    written = (
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\n"
        "downcast_bf16: 'no'\nenable_cpu_affinity: false\ngpu_ids: all\nmachine_rank: 0\n"
        "main_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
        "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
        "tpu_use_sudo: false\nuse_cpu: false\nfp16: true\ndynamo_backend: 'NO'\n"
    )
    path = write(tmp_path, written)
    assert read_yaml(path, nnodes=1, world_size=8, gpus=8).uses_torchrun
    chosen = write(tmp_path, "distributed_type: MULTI_GPU\ngpu_ids: 0,1,2,3,4,5,6,7\n")
    assert read_yaml(chosen, nnodes=1, world_size=8, gpus=8).uses_torchrun
    on_cpu = write(tmp_path, "distributed_type: MULTI_GPU\nuse_cpu: true\n")
    assert read_yaml(on_cpu, nnodes=1, world_size=2).uses_torchrun


def test_a_number_of_processes_that_is_not_used_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 4\n")
    [warning] = read_yaml(path, nnodes=1, world_size=8, gpus=8, of_user=True).warnings
    assert warning.startswith("accelerate.yaml: num_processes 4 is not used: 8 are started")
    assert read_yaml(path, nnodes=1, world_size=8, gpus=8).warnings == ()
    assert read_yaml(path, nnodes=1, world_size=4, gpus=4, of_user=True).warnings == ()
