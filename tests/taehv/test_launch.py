"""The training as it really runs: accelerate launch, DeepSpeed, two nodes of one process over gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "taehv" / "train.py"
SMALL = ROOT / "configs" / "taehv_config_small.py"
CPU_YAML = ROOT / "deepspeed" / "deepspeed_cpu.yaml"
SHORT = (
    "--height=32",
    "--width=32",
    "--max-train-steps=30",
    "--warmup-steps=2",
    "--log-every=1",
    "--checkpoint-every=100",
    "--validate-every=100",
)

pytestmark = pytest.mark.train


@dataclass(frozen=True)
class Nodes:
    """Two nodes under way; ``output`` has a file of each."""

    launchers: tuple[subprocess.Popen[bytes], ...]
    output: tuple[Path, ...]

    def wait(self) -> list[int]:
        return [launcher.wait(timeout=LIMIT_S) for launcher in self.launchers]

    def said(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in self.output)

    def wait_for(self, text: str) -> None:
        def there() -> bool:
            assert all(launcher.poll() is None for launcher in self.launchers), self.said()
            return text in self.said()

        until(there, lambda: f"never said {text!r}:\n{self.said()}")


def child_environment(**variables: str) -> Mapping[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    # Where a GPU is present, the two "nodes" would share it, which NCCL refuses.
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **variables}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def two_nodes(
    folder: Path, arguments: Sequence[str], config_file: Path = CPU_YAML, *, own_disks: bool = False
) -> Iterator[Nodes]:
    """Start the small config on two nodes; whatever is left of them is ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    launchers, files = [], []
    for node_rank in (0, 1):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config_file)]
        command += ["--num_machines", "2", "--num_processes", "2", "--machine_rank", str(node_rank)]
        command += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port), str(TRAIN)]
        disk = folder / f"disk{node_rank}" if own_disks else folder
        command += ["--config", str(SMALL), "--output-dir", str(disk / "run"), *arguments]
        exit_file = {"PLATFORM_LAUNCH_EXIT_FILE": str(folder / f"exit{node_rank}.json")}
        files.append(folder / f"node{node_rank}.log")
        with files[-1].open("wb") as output:
            launchers.append(
                subprocess.Popen(
                    command,
                    cwd=folder,
                    env=child_environment(**exit_file),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    nodes = Nodes(tuple(launchers), tuple(files))
    try:
        yield nodes
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                launcher.terminate()  # torch's agent passes it on to its worker
        nodes.wait()


def train(folder: Path, *arguments: str, config_file: Path = CPU_YAML, own_disks: bool = False) -> Path:
    """Train on two nodes to the end and return the output folder, node 0's where each has its own."""
    with two_nodes(folder, arguments, config_file, own_disks=own_disks) as nodes:
        assert nodes.wait() == [0, 0], nodes.said()
    return folder / "disk0" / "run" if own_disks else folder / "run"


def losses(run: Path) -> dict[int, float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of 30 steps on two nodes under ZeRO-2 that share a disk."""
    return train(tmp_path_factory.mktemp("uninterrupted"), *SHORT)


def test_two_nodes_train_and_leave_checkpoint_metrics_and_picture(uninterrupted: Path) -> None:
    folder = uninterrupted.parent
    said = (folder / "node0.log").read_text()
    assert "[INFO] Initialized process group with 2 processes" in said
    assert "Step 1/30 | Loss: " in said
    assert "training on the shipped 7-second sample" in said
    for kind, name in (
        ("Checkpoint", "checkpoints/checkpoint-00000030"),
        ("Metrics", "metrics.jsonl"),
        ("Picture", "reconstruction.png"),
    ):
        assert f"[INFO] {kind}: {uninterrupted / name}" in said
        assert (uninterrupted / name).exists()
    assert list((uninterrupted / "tensorboard").glob("events*"))
    assert "Step" not in (folder / "node1.log").read_text()


def test_training_lowers_the_loss(uninterrupted: Path) -> None:
    values = losses(uninterrupted)
    assert sorted(values) == list(range(1, 31))
    assert sum(values[step] for step in range(26, 31)) < 0.8 * sum(values[step] for step in range(1, 6))


@takes_long
def test_a_run_stopped_by_sigterm_and_resumed_ends_with_the_very_same_weights(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """And nodes that share no storage, each with its part of a checkpoint, with those of nodes that do."""
    with two_nodes(tmp_path, SHORT, own_disks=True) as nodes:
        nodes.wait_for("Step 3/30")
        nodes.launchers[1].send_signal(signal.SIGTERM)  # one node of two is told
        assert 0 not in nodes.wait()
        assert "Checkpoint written" in nodes.said()
        assert "exitcode: 143" in nodes.said()  # what torch's agent saw of the other node's worker
        for node_rank in (0, 1):  # and what a launcher can read, who only sees that accelerate returned 1
            assert json.loads((tmp_path / f"exit{node_rank}.json").read_text())["exit_code"] == 143
        assert "nodes do not share output_dir" in nodes.said()
    runs = [tmp_path / f"disk{node_rank}" / "run" for node_rank in (0, 1)]
    stopped_at = int((runs[0] / "checkpoints" / "latest").read_text().strip()[-8:])
    assert 3 <= stopped_at < 30

    resumed = train(tmp_path, *SHORT, own_disks=True)
    assert f"step {stopped_at}" in (tmp_path / "node0.log").read_text()
    for node_rank, run in enumerate(runs):
        shards = [file.name for file in (run / "checkpoints" / "checkpoint-00000030").rglob("zero_pp_rank_*")]
        assert shards == [f"zero_pp_rank_{node_rank}_mp_rank_00_optim_states.pt"]
    assert losses(resumed) == losses(uninterrupted)
    name = "checkpoints/checkpoint-00000030/ema.safetensors"
    mine, other = load_file(resumed / name), load_file(uninterrupted / name)
    assert all(mine[key].equal(other[key]) for key in other)


@takes_long
def test_zero_3_with_every_parameter_divided_computes_what_zero_2_computes(
    uninterrupted: Path, tmp_path: Path
) -> None:
    settings = {
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }
    (tmp_path / "zero3.json").write_text(json.dumps(settings))
    launch = yaml.safe_load(CPU_YAML.read_text())
    launch["deepspeed_config"] = {
        "deepspeed_config_file": str(tmp_path / "zero3.json"),
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": False,
    }
    del launch["mixed_precision"]
    (tmp_path / "zero3.yaml").write_text(yaml.safe_dump(launch))
    arguments = [*SHORT, "--max-train-steps=4", "--activation-checkpointing=true"]
    run = train(tmp_path, *arguments, config_file=tmp_path / "zero3.yaml")
    expected = {step: losses(uninterrupted)[step] for step in (1, 2, 3)}
    assert {step: losses(run)[step] for step in (1, 2, 3)} == pytest.approx(expected, rel=1e-4)


def test_a_yaml_that_contradicts_the_config_is_refused(tmp_path: Path) -> None:
    worker = child_environment(
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        ACCELERATE_USE_DEEPSPEED="true",
        ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4",
    )
    command = [sys.executable, str(TRAIN), "--config", str(SMALL), "--output-dir", str(tmp_path)]
    ended = subprocess.run(command, env=worker, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 66
    assert "error: gradient_accumulation_steps is 4 in the yaml" in ended.stderr
    assert "Traceback" not in ended.stderr


@takes_long
def test_a_step_under_the_shipped_stage_takes_few_collectives_whatever_the_accumulation() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "taehv_collectives.py"), "--stages", "1"]
    command += ["--accumulation", "2", "--model", "small"]
    counted = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * LIMIT_S).stdout
    )
    # The gradients once, the parameters once, the norm for clipping, and the request to stop.
    assert counted["collectives"] == 4
    assert counted["_allgather_base"] == 1


def start_alone(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the training as one process, without a launcher."""
    command = [sys.executable, str(TRAIN), "--config", str(SMALL), "--output-dir", str(folder / "run")]
    return subprocess.Popen(
        [*command, *arguments], env=child_environment(**variables), stderr=subprocess.PIPE, text=True
    )


def test_a_refusal_reaches_the_launcher_as_a_file(tmp_path: Path) -> None:
    exit_file = tmp_path / "exit.json"
    gone = str(tmp_path / "gone")
    ended = start_alone(tmp_path, "--data-root", gone, PLATFORM_LAUNCH_EXIT_FILE=str(exit_file))
    ended.communicate(timeout=LIMIT_S)
    assert ended.returncode == 66
    left = json.loads(exit_file.read_text())
    assert left["exit_code"] == 66
    assert "is not a folder" in left["reason"]


@takes_long
def test_a_second_training_into_the_same_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    with start_alone(tmp_path, "--max-train-steps=100000", "--log-every=1") as first:
        until(lambda: metrics.exists() and metrics.read_text())
        before = metrics.read_text()
        second = start_alone(tmp_path, *SHORT)
        _, errors = second.communicate(timeout=LIMIT_S)
        assert second.returncode == 66
        assert "is the output of a training that is running" in errors
        assert "--output-dir" in errors
        assert metrics.read_text().startswith(before)
        first.terminate()
        first.communicate(timeout=LIMIT_S)
    assert first.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "run" / ".lock").exists()


def test_accelerate_reads_the_shipped_yaml() -> None:
    expected = {"deepspeed_cpu": [2, 1, 1], "deepspeed_8gpu": [1, 2, 1], "deepspeed_16gpu": [1, 1, 2]}
    code = (
        "import json, sys; from accelerate.commands.config.config_args import load_config_from_file as load;"
        "read = list(map(load, sys.argv[1:]));"
        "print(json.dumps([[one.deepspeed_config, one.num_machines] for one in read]))"
    )
    files = [str(ROOT / "deepspeed" / f"{name}.yaml") for name in expected]
    command = [sys.executable, "-c", code, *files]
    read = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True).stdout
    for name, (deepspeed, n_machines) in zip(expected, json.loads(read), strict=True):
        found = [deepspeed["zero_stage"], deepspeed["gradient_accumulation_steps"], n_machines]
        assert (name, found) == (name, expected[name])
        assert deepspeed["deepspeed_multinode_launcher"] == "standard"
