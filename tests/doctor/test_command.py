"""``platform-launch doctor`` and the launch that runs it: processes, their output and their exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from platform_launch.cli.doctor import command as doctor
from platform_launch.doctor import deep, examination
from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding
from platform_launch.doctor.gather import gather
from platform_launch.doctor.quick import NAMES
from platform_launch.environment import Environment
from platform_launch.hardware.packages import Module
from platform_launch.health import quarantine
from platform_launch.plan.launch_plan import LaunchPlan
from tests.conftest import FakeNvml
from tests.lab.effects import effects_of
from tests.lab.in_process import run_in_process
from tests.lab.nvml import fake
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S

MAIN = Path(__file__).resolve().parents[2] / "platform_launch" / "__main__.py"


BARE = {"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir()}


def run(*arguments: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process."""
    return run_in_process(arguments, {**BARE, **(env or {})})


def command(*arguments: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line as a process, for a launch or a stand-in for the driver."""
    return subprocess.run(
        [sys.executable, str(MAIN), *map(str, arguments)],
        env={**BARE, **(env or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["id"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('trained')")
    return path


@pytest.fixture
def free_port() -> Iterator[str]:
    with reserved_port() as port:
        yield str(port)


def test_a_missing_library_is_told_once(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_deepspeed(env: Environment, plan: LaunchPlan) -> Facts:
        facts = gather(env, plan)
        modules = {**facts.installation.modules, "deepspeed": Module("deepspeed", None, ())}
        return dataclasses.replace(
            facts, installation=dataclasses.replace(facts.installation, modules=modules)
        )

    def tried(library: str, plan: LaunchPlan, env: Mapping[str, str]) -> list[Finding]:
        libraries.append(library)
        return []

    libraries: list[str] = []
    monkeypatch.setattr(examination, "gather", without_deepspeed)
    monkeypatch.setattr(deep, "try_library", tried)
    monkeypatch.setattr(examination, "_ops", lambda *_: pytest.fail("asked for the ops of what is missing"))
    arguments = ["--local", "--script", str(script), "--recipe", "auto", "--format", "json"]
    done = CliRunner().invoke(doctor, [*arguments, "--log-dir", str(script.parent)])
    missing = [one["what"] for one in json.loads(done.stdout)["findings"] if "deepspeed" in one["what"]]
    assert (len(missing), libraries) == (1, ["torch"]), done.stdout


def test_a_healthy_machine_ends_with_zero(script: Path, free_port: str) -> None:
    done = run(
        "doctor", "--quick", "--script", script, "--log-dir", script.parent, "--master-port", free_port
    )
    *lines, counts = done.stdout.splitlines()
    assert (done.returncode, counts) == (0, "0 errors, 0 warnings"), done.stderr
    assert lines[0].startswith("GPUs ")
    number = len(NAMES) + 1
    checked = lines[next(at for at, line in enumerate(lines) if "checks" in line) :]
    assert checked[0].startswith(
        f"{number} of {number} checks passed. Checked: launch plan; variables: unknown "
    )
    assert "memory: shared memory, locked memory, memory left" in " ".join(map(str.strip, checked))


def test_warnings_end_with_one_and_errors_with_two(script: Path) -> None:
    options = ("doctor", "--quick", "--script", script, "--log-dir", script.parent)
    warned = run(*options, env={"NCCL_ALGO": "Ring"})
    assert warned.returncode == 1, warned.stdout
    assert "WARNING  variable-debug-only: NCCL_ALGO=Ring" in warned.stdout
    assert f"{len(NAMES)} of {len(NAMES) + 1} checks passed" in warned.stdout
    refused = run("doctor", "--quick", "--script", "nowhere.py")
    assert refused.returncode == 2
    assert "ERROR    refused-input: nowhere.py does not exist" in refused.stdout


def test_what_is_refused_does_not_hide_the_rest() -> None:
    env = {
        "WORLD_SIZE": "2",
        "RANK": "7",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
        "NCCL_IB_CUDA_SUPPORT": "1",
    }
    found = findings(run("doctor", "--quick", "--format", "json", "--config", "nowhere.py", env=env))
    assert {"refused-topology", "refused-input", "variable-dead"} <= found.keys()
    assert "out of range for 2 nodes" in found["refused-topology"]["what"]


@fake.without_driver
def test_devices_that_nobody_can_use_are_a_finding_beside_the_others(script: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_LAUNCH_BLOCKING": "1"}
    done = run("doctor", "--quick", "--format", "json", "--script", script, "--launcher", "torchrun", env=env)
    found = findings(done)
    assert "no process can use this node's 2 × GPU" in found["refused-hardware"]["what"]
    assert "variable-debug-only" in found
    assert done.returncode == 2


def test_a_broken_driver_is_a_finding_with_its_code(fake_nvml: FakeNvml) -> None:
    env = fake_nvml(*fake.h100s(8), fake.fail("nvmlInitWithFlags", 15))
    done = command("doctor", "--quick", "--format", "json", env=env)
    assert done.returncode == 2
    assert "GPU_IS_LOST (15" in findings(done)["refused-hardware"]["what"]


def test_a_gpu_that_asks_for_a_reset_refuses_the_launch(fake_nvml: FakeNvml) -> None:
    env = fake_nvml(*fake.h100s(2), fake.field(1, fake.RECOVERY_ACTION, 1))
    done = command("doctor", "--quick", "--format", "json", env=env)
    assert findings(done)["gpu-recovery-action"]["where"] == "GPU 1"
    assert command("run", "--script", __file__, "--launcher", "python", env=env).returncode == 78


def test_a_node_whose_doctor_finds_no_error_is_released(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    file = tmp_path / "quarantine.jsonl"
    quarantine.add(file, quarantine.QuarantinedNode("gn7", 0.0, None, "XID 79"))
    for broken, left in ((True, 1), (False, 0)):
        lines = (fake.field(0, fake.RECOVERY_ACTION, 1),) if broken else ()
        env = {**fake_nvml(*fake.h100s(1), *lines), "PLATFORM_LAUNCH_NODE_NAME": "gn7"}
        command("doctor", "--quick", "--release", "--quarantine", file, "--log-dir", tmp_path, env=env)
        assert len(quarantine.read(file)) == left


def test_more_processes_than_gpus_are_a_finding(fake_nvml: FakeNvml) -> None:
    options = ("--format", "json", "--nproc-per-node", "8")
    done = command("doctor", "--quick", *options, env=fake_nvml(*fake.h100s(4)))
    assert "8 processes per node (--nproc-per-node)" in findings(done)["refused-topology"]["what"]


def test_memory_that_others_hold_is_a_finding(fake_nvml: FakeNvml) -> None:
    env = fake_nvml(*fake.h100s(1), fake.process(0, 4711, 70000))
    done = command("doctor", "--quick", "--format", "json", env=env)
    assert "pid 4711" in findings(done)["gpu"]["what"]


def test_a_cpu_torch_on_a_gpu_machine_is_a_finding(fake_nvml: FakeNvml) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    if torch.version.cuda is not None:
        pytest.skip("needs a torch built without CUDA")
    found = findings(command("doctor", "--quick", "--format", "json", env=fake_nvml(*fake.h100s(8))))
    assert "this node's GPUs (8) would not be used" in found["torch-without-cuda"]["what"]


def test_torch_is_tried_in_a_process_of_its_own(script: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    options = ("--format", "json", "--launcher", "torchrun", "--script", script, "--log-dir", tmp_path)
    done = command("doctor", *options, env={"PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 2, done.stderr
    assert "libcudart.so.12" in findings(done)["torch-import-failed"]["what"]


def test_a_launch_refuses_a_port_that_is_taken_and_names_the_owner(script: Path, tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        options = ("run", "--launcher", "torchrun", "--script", script, "--log-dir", tmp_path / "logs")
        done = run(*options, "--master-port", port)
    assert done.returncode == 65, done.stderr
    assert f"error: port {port} (MASTER_PORT) is in use by pid {os.getpid()}" in done.stderr
    assert "[port-unusable]" in done.stderr
    assert "5/5" not in done.stderr


def test_no_doctor_starts_nevertheless(script: Path, tmp_path: Path) -> None:
    env = {"NCCL_SOCKET_IFNAME": "nowhere0", "CUDA_LAUNCH_BLOCKING": "1"}
    options = ("run", "--launcher", "python", "--script", script, "--log-dir", tmp_path / "logs")
    warned = command(*options, env=env)
    assert "CUDA_LAUNCH_BLOCKING=1 is meant for debugging" in warned.stderr
    assert warned.returncode == 0
    silent = command(*options, "--no-doctor", env=env)
    assert silent.returncode == 0
    assert "CUDA_LAUNCH_BLOCKING=1 is meant" not in silent.stderr


def test_the_cheap_checks_import_nothing_heavy() -> None:
    program = (
        "import sys; from platform_launch.cli import main; main(['doctor', '--quick']);"
        "heavy = {'torch', 'accelerate', 'deepspeed', 'jax', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=MAIN.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_cheap_checks_start_no_process_and_look_at_few_files() -> None:
    looked = effects_of(
        "from platform_launch.doctor import examine; from platform_launch.doctor.gather import gather\n"
        "examine(gather(env, plan))",
        after="import sys; from platform_launch.environment import Environment;"
        "from platform_launch import hardware; from platform_launch.plan.launch_plan import build_plan;"
        "from platform_launch.project import project_root;"
        "from platform_launch.plan.request import Request;"
        "env = Environment({'WORLD_SIZE': '2', 'RANK': '0', 'MASTER_ADDR': 'name.invalid'});"
        "machine = hardware.detect(env);"
        "root = project_root();"
        "request = Request(root, sys.executable, '/tmp/x', 'now', root / 'logs', example='taehv');"
        "plan = build_plan(env, machine, request)",
    )
    assert looked.started == ()
    assert len(looked.read) < 60, looked.read  # mostly one for each control group above this process
