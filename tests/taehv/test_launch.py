"""The training as it really runs: accelerate launch, DeepSpeed, two nodes of one process over gloo."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from safetensors.torch import load_file
from torch import Tensor

from tests.lab.disk import requires_mount, small_disk
from tests.lab.forking import ON_CPU, Program, program
from tests.lab.needs import takes_long
from tests.lab.port import reserved_port
from tests.lab.waiting import until

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "taehv" / "train.py"
SMALL = ROOT / "configs" / "taehv_config_small.py"
CPU_YAML = ROOT / "deepspeed" / "deepspeed_cpu.yaml"
WITH_AGENT = ("-m", "accelerate.commands.launch")
WITHOUT_AGENT = (str(ROOT / "tests" / "lab" / "without_agent.py"),)
SHORT = (
    "--height=32",
    "--width=32",
    "--max-train-steps=30",
    "--warmup-steps=2",
    "--log-every=1",
    "--checkpoint-every=20",
    "--validate-every=100",
)

pytestmark = pytest.mark.train


@dataclass(frozen=True)
class Nodes:
    """Two nodes under way."""

    launchers: tuple[Program, ...]

    def wait(self) -> list[int]:
        return [launcher.wait() for launcher in self.launchers]

    def said(self) -> str:
        return "\n".join(launcher.said() for launcher in self.launchers)

    def wait_for(self, text: str) -> None:
        def there() -> bool:
            assert all(launcher.poll() is None for launcher in self.launchers), self.said()
            return text in self.said()

        until(there, lambda: f"never said {text!r}:\n{self.said()}")


def child_environment(**variables: str) -> Mapping[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, **ON_CPU, **variables}


@contextmanager
def two_nodes(
    folder: Path, accelerate: Sequence[str], *commands: Sequence[str], agents: bool = False
) -> Iterator[Nodes]:
    """Start a script and its arguments on each node; whatever is left of them is ended at the end."""
    with ExitStack() as running:
        port = running.enter_context(reserved_port())
        launchers = []
        for node_rank, command in enumerate(commands):
            exit_file = folder / f"exit{node_rank}.json"
            node = program(
                *(*(WITH_AGENT if agents else WITHOUT_AGENT), *accelerate),
                *("--num_machines", "2", "--num_processes", "2", "--machine_rank", str(node_rank)),
                *("--main_process_ip", "127.0.0.1", "--main_process_port", str(port), *command),
                folder=folder,
                output=folder / f"node{node_rank}.log",
                environment=child_environment(PLATFORM_LAUNCH_EXIT_FILE=str(exit_file)),
            )
            launchers.append(running.enter_context(node))
        yield Nodes(tuple(launchers))


@contextmanager
def training(
    folder: Path,
    *arguments: str,
    config_file: Path = CPU_YAML,
    own_disks: bool = False,
    agents: bool = False,
) -> Iterator[Nodes]:
    """Train the small config on two nodes, each into ``run`` of its own disk or of the one they share."""
    disks = [folder / f"disk{node_rank}" if own_disks else folder for node_rank in (0, 1)]
    commands = [
        (str(TRAIN), "--config", str(SMALL), "--output-dir", str(disk / "run"), *arguments) for disk in disks
    ]
    with two_nodes(folder, ("--config_file", str(config_file)), *commands, agents=agents) as nodes:
        yield nodes


def losses(run: Path) -> dict[int, float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of 30 steps on two nodes under ZeRO-2 that share a disk."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with training(folder, *SHORT, agents=True) as nodes:
        assert nodes.wait() == [0, 0], nodes.said()
    return folder / "run"


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


@pytest.mark.nightly
def test_a_run_stopped_by_sigterm_and_resumed_ends_with_the_very_same_weights(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """And nodes that share no storage end with those of nodes that do."""
    with training(tmp_path, *SHORT, "--num-workers=4", own_disks=True, agents=True) as nodes:
        nodes.wait_for("Step 3/30")
        nodes.launchers[1].send_signal(signal.SIGTERM)  # one node of two is told
        assert 0 not in nodes.wait()
        assert "Checkpoint written" in nodes.said()
        assert "exitcode: 143" in nodes.said()  # what torch's agent saw of the other node's worker
        for node_rank in (0, 1):  # and what a launcher can read, who only sees that accelerate returned 1
            assert json.loads((tmp_path / f"exit{node_rank}.json").read_text())["exit_code"] == 143
        assert "nodes do not share output_dir" in nodes.said()
    runs = [tmp_path / f"disk{node_rank}" / "run" for node_rank in (0, 1)]
    stopped_at = int((runs[0] / "checkpoints" / "latest").resolve().name[-8:])
    assert 3 <= stopped_at < 30

    with training(tmp_path, *SHORT, own_disks=True) as nodes:
        assert nodes.wait() == [0, 0], nodes.said()
    resumed = runs[0]
    assert f"step {stopped_at}" in (tmp_path / "node0.log").read_text()
    assert losses(resumed) == losses(uninterrupted)
    for run in runs:  # each node has a whole checkpoint
        for name in ("ema.safetensors", "training.safetensors"):
            name = f"checkpoints/checkpoint-00000030/{name}"
            mine, other = load_file(run / name), load_file(uninterrupted / name)
            assert all(mine[key].equal(other[key]) for key in other)


def resumable(run: Path, step: int, folder: Path) -> None:
    """Copy a run as it was after ``step``."""
    name = f"checkpoint-{step:08d}"
    shutil.copytree(run / "checkpoints" / name, folder / "run" / "checkpoints" / name)
    if (run / "metrics.jsonl").exists():  # only the first process of all writes it
        shutil.copy(run / "metrics.jsonl", folder / "run")


@pytest.mark.nightly
def test_zero_3_with_every_parameter_divided_goes_on_as_zero_2_would(
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
    resumable(uninterrupted, 20, tmp_path)
    arguments = [*SHORT, "--activation-checkpointing=true"]
    with training(tmp_path, *arguments, config_file=tmp_path / "zero3.yaml") as nodes:
        assert nodes.wait() == [0, 0], nodes.said()
    run = tmp_path / "run"
    assert losses(run) == pytest.approx(losses(uninterrupted), rel=1e-3)
    name = "checkpoints/checkpoint-00000030/training.safetensors"
    mine, other = load_file(run / name), load_file(uninterrupted / name)
    assert mine.keys() == other.keys()
    for key in other:
        assert (mine[key] - other[key]).norm() <= 1e-2 * other[key].norm() + 1e-6, key


def test_a_yaml_that_contradicts_the_config_is_refused(tmp_path: Path) -> None:
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    }
    with alone(tmp_path, **variables) as refused:
        assert refused.wait() == 66
    assert "error: gradient_accumulation_steps is 4 in the yaml" in refused.said()
    assert "Traceback" not in refused.said()


@pytest.mark.nightly
def test_a_step_under_the_shipped_stage_takes_few_collectives_whatever_the_accumulation(
    tmp_path: Path,
) -> None:
    accelerate = ("--use_deepspeed", "--deepspeed_multinode_launcher", "standard", "--zero_stage", "1")
    accumulation = ("--gradient_accumulation_steps", "2", "--mixed_precision", "no")
    result = tmp_path / "counted.json"
    benchmark = (str(ROOT / "benchmarks" / "taehv_collectives.py"), "--worker", str(result))
    small = (*benchmark, "--accumulation", "2", "--model", "small")
    with two_nodes(tmp_path, accelerate + accumulation, small, small) as nodes:
        assert nodes.wait() == [0, 0], nodes.said()
    counted = json.loads(result.read_text())
    # The gradients once, the parameters once, the norm for clipping, and the request to stop.
    assert counted["collectives"] == 4
    assert counted["_allgather_base"] == 1


def alone(
    folder: Path, *arguments: str, name: str = "alone", **variables: str
) -> AbstractContextManager[Program]:
    """Start the training as one process, without a launcher."""
    return program(
        *(str(TRAIN), "--config", str(SMALL), "--output-dir", str(folder / "run"), *arguments),
        folder=folder,
        output=folder / f"{name}.log",
        environment=child_environment(**variables),
    )


def test_a_refusal_reaches_the_launcher_as_a_file(tmp_path: Path) -> None:
    exit_file = tmp_path / "exit.json"
    gone = str(tmp_path / "gone")
    with alone(tmp_path, "--data-root", gone, PLATFORM_LAUNCH_EXIT_FILE=str(exit_file)) as ended:
        assert ended.wait() == 66
    left = json.loads(exit_file.read_text())
    assert left["exit_code"] == 66
    assert "is not a folder" in left["reason"]


@takes_long
def test_a_second_training_into_the_same_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    with alone(tmp_path, "--max-train-steps=100000", "--log-every=1", name="first") as first:
        until(lambda: metrics.exists() and metrics.read_text(), first.said)
        before = metrics.read_text()
        with alone(tmp_path, *SHORT, name="second") as second:
            assert second.wait() == 66
        assert "is the output folder of a running job" in second.said()
        assert "--output-dir" in second.said()
        assert metrics.read_text().startswith(before)
        first.send_signal(signal.SIGTERM)
        assert first.wait() == 128 + signal.SIGTERM
    assert (tmp_path / "run" / ".lock").read_text() == ""


@takes_long
def test_a_run_goes_on_with_another_number_of_processes_and_another_stage_of_zero(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """Two processes under ZeRO-2, then one, then two again: always the same clips per step."""
    ways = {
        "ddp": ("--multi_gpu",),
        "zero1": ("--use_deepspeed", "--deepspeed_multinode_launcher", "standard", "--zero_stage", "1"),
    }
    expected = losses(uninterrupted)
    one = tmp_path / "one"
    resumable(uninterrupted, 20, one)
    with alone(one, *SHORT, "--gradient-accumulation-steps=2", "--checkpoint-every=25") as program:
        assert program.wait() == 0, program.said()
    assert "step 20, 80 clips seen" in program.said()
    assert "-> 4 clips per step" not in program.said()  # 2 x 1 x 2 before, 1 x 2 x 2 now
    assert losses(one / "run") == pytest.approx(expected, rel=2e-3)

    for name, settings in ways.items():
        two = tmp_path / name
        resumable(one / "run", 25, two)
        command = (str(TRAIN), "--config", str(SMALL), "--output-dir", str(two / "run"), *SHORT)
        with two_nodes(two, (*settings, "--mixed_precision", "no"), command, command) as nodes:
            assert nodes.wait() == [0, 0], nodes.said()
        assert "World size: 2" in nodes.said()
        assert "step 25, 100 clips seen" in nodes.said()
        assert losses(two / "run") == pytest.approx(expected, rel=2e-3)


@pytest.mark.nightly
def test_the_adversary_is_the_same_on_all_processes_and_after_a_resume(tmp_path: Path) -> None:
    short = (*SHORT, "--max-train-steps=4", "--checkpoint-every=2", "--adversarial-loss-weight=0.02")

    def trained(folder: Path) -> list[dict[str, Tensor]]:
        runs = [folder / f"disk{node_rank}" / "run" for node_rank in (0, 1)]
        commands = [(str(TRAIN), "--config", str(SMALL), "--output-dir", str(run), *short) for run in runs]
        with two_nodes(folder, ("--multi_gpu", "--mixed_precision", "no"), *commands) as nodes:
            assert nodes.wait() == [0, 0], nodes.said()
        last = [run / "checkpoints" / "checkpoint-00000004" for run in runs]
        return [
            load_file(one / name) for one in last for name in ("adversary.safetensors", "ema.safetensors")
        ]

    (tmp_path / "whole").mkdir()
    adversary, weights, of_other, _ = trained(tmp_path / "whole")
    assert adversary.keys() == of_other.keys()
    assert all(adversary[name].equal(of_other[name]) for name in adversary)
    for disk in ("disk0", "disk1"):
        resumable(tmp_path / "whole" / disk / "run", 2, tmp_path / "resumed" / disk)
    resumed, same_weights, *_ = trained(tmp_path / "resumed")
    assert all(adversary[name].equal(resumed[name]) for name in adversary)
    assert all(weights[name].equal(same_weights[name]) for name in weights)


@takes_long
def test_a_signal_to_all_processes_leaves_a_checkpoint_although_four_workers_get_it_too(
    tmp_path: Path,
) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    with alone(tmp_path, *SHORT, "--max-train-steps=100000", "--num-workers=4") as run:
        until(lambda: metrics.exists() and '"step": 3' in metrics.read_text(), run.said)
        children = psutil.Process(run.pid).children()
        assert len(children) == 4
        for process in [*children, psutil.Process(run.pid)]:
            process.send_signal(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM, run.said()
    assert "Checkpoint written" in run.said()
    assert "Traceback" not in run.said()


def test_an_output_folder_that_cannot_be_written_is_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with alone(tmp_path, "--output-dir", str(tmp_path / "file" / "run")) as run:
        assert run.wait() == 66, run.said()
    assert f"error: {tmp_path / 'file' / 'run'} cannot be written: Not a directory" in run.said()
    assert "Traceback" not in run.said()


@requires_mount
def test_a_disk_that_fills_up_during_training_is_reported_without_a_traceback(tmp_path: Path) -> None:
    with small_disk(tmp_path / "run", 1) as disk:
        (disk / "neighbour").write_bytes(b"x" * (2**20 - 3 * 2**12))
        with alone(tmp_path, *SHORT, "--tracker=none") as run:
            assert run.wait() == 66, run.said()
    assert "error: " in run.said()
    assert "No space left on device" in run.said()
    assert "bytes free)" in run.said()
    assert "Traceback" not in run.said()


@takes_long
def test_a_gradient_that_is_not_finite_stops_the_run_and_says_where_it_began(tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    with alone(tmp_path, *SHORT, "--learning-rate=1e15", "--max-nonfinite-steps=2") as run:
        assert run.wait() == 66
    said = run.said()
    assert "step 2 skipped: its gradient is not finite (1 skipped so far)" in said
    assert "error: the gradient of step 4 is not finite, and those of 2 steps before" in said
    assert "it began with the output of model.encoder." in said
    assert "Traceback" not in said
    for line in metrics.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN is not JSON


def test_accelerate_reads_the_shipped_yaml() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    expected = {"deepspeed_cpu": [2, 1, 1], "deepspeed_8gpu": [1, 2, 1], "deepspeed_16gpu": [1, 1, 2]}
    for name, values in expected.items():
        read = load_config_from_file(str(ROOT / "deepspeed" / f"{name}.yaml"))
        deepspeed = read.deepspeed_config
        found = [deepspeed["zero_stage"], deepspeed["gradient_accumulation_steps"], read.num_machines]
        assert (name, found) == (name, values)
        assert deepspeed["deepspeed_multinode_launcher"] == "standard"
