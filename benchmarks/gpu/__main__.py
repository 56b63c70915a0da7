"""Everything that only a GPU can show, in one command and ten minutes: ``python benchmarks/gpu``.

Each part runs in a process of its own with a limit, so that what breaks one says so and the others go on:
what the driver says and what would be launched, the doctor, NCCL between two GPUs, DeepSpeed's compiled
ops, four ways in which CUDA fails and what `why` makes of them, the H100 config's step beside the eager
twin and beside what `taehv_roofline.py` expects, whole trainings under DDP and ZeRO, and whether a step
waits for the GPU.

Without a GPU it is a rehearsal within the same time: the same parts with a small model on the CPU, and one
way of the step compiled instead of three; those that need CUDA are left out with the reason. Exits with 1 if
a part failed or, on a GPU that the roofline knows, a goal is missed.

    python benchmarks/gpu [--only PART …] [--limit-s 570] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import taehv_roofline

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HAS_GPU = torch.cuda.is_available()
N_GPUS = torch.cuda.device_count()
STEPS = 50 if HAS_GPU else 3
BATCH = 12 if HAS_GPU else 1
OF_EXPECTED = 0.9  # of the steps a second that the roofline expects
OF_TWIN = 0.75  # of the eager twin's time, with the best of channels_last and compile
SMALL = ("--model=small", "--height=64", "--width=64", "--num-frames=8", "--batch-size=2", "--num-workers=0")


class Left(Exception):  # noqa: N818 - nothing went wrong
    """A part that this machine cannot run."""


def run(command: list[str], limit_s: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, or end it at the limit (exit code 124)."""
    environment = {**os.environ, **({} if HAS_GPU else {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=limit_s)
            code = child.returncode
        except subprocess.TimeoutExpired:
            end_all(child.pid)
            output, code = child.communicate()[0], 124
        except BaseException:
            end_all(child.pid)
            raise
    return subprocess.CompletedProcess(command, code, output, "")


def end_all(pid: int) -> None:
    """End a process and all below it: torch's agent starts its workers in sessions of their own."""
    process = psutil.Process(pid)
    for each in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def launcher(*arguments: str) -> list[str]:
    """Return the command of this project's launcher."""
    return [sys.executable, "-m", "platform_launch", *arguments]


def last_json(ended: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON that a worker printed as its last line."""
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}: {ended.stdout[-1500:]}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


def plan(limit_s: float) -> dict[str, object]:
    """What is on this machine, and what would be launched on it."""
    ended = run(launcher("run", "--example", "taehv", "--print-env", "--format", "json"), limit_s)
    if ended.returncode:
        raise RuntimeError(ended.stdout[-1500:])
    made = json.loads(ended.stdout[ended.stdout.index("{") :])
    return {"hardware": made["hardware"]["gpus"], "argv": made["argv"], "warnings": made["warnings"]}


def doctor(limit_s: float) -> dict[str, object]:
    """What the doctor finds on a machine that is to be healthy."""
    ended = run(launcher("doctor", "--example", "taehv", "--format", "json"), limit_s)
    if ended.returncode not in (0, 1, 2):
        raise RuntimeError(ended.stdout[-1500:])
    return {"exit_code": ended.returncode, "said": json.loads(ended.stdout[ended.stdout.index("{") :])}


def nccl(limit_s: float) -> dict[str, object]:
    """Reduce between two processes; over gloo in a rehearsal."""
    if N_GPUS == 1:
        raise Left("one GPU: NCCL refuses two processes on it")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said: dict[str, object] = last_json(run([*command, str(HERE / "reduce.py")], limit_s))
    return said


def ops(limit_s: float) -> dict[str, object]:
    """Compile one of DeepSpeed's CUDA ops."""
    if not HAS_GPU or shutil.which("nvcc") is None:
        raise Left("no nvcc" if HAS_GPU else "no GPU")
    code = "from deepspeed.ops.op_builder import FusedAdamBuilder as B; B().load(verbose=False)"
    start = time.monotonic()
    ended = run([sys.executable, "-c", code], limit_s)
    if ended.returncode:
        raise RuntimeError(ended.stdout[-1500:])
    return {"fused_adam_compiled_s": round(time.monotonic() - start, 1)}


def faults(limit_s: float) -> dict[str, object]:
    """Break CUDA on purpose; see how it ends and what `why` names as the cause."""
    kinds = ("out_of_memory", "device_assert", "illegal_access", "spinning_kernel")
    found: dict[str, object] = {}
    for kind in kinds:
        if not HAS_GPU and kind != "device_assert":
            found[kind] = "left out: no GPU"
            continue
        ended = run([sys.executable, str(HERE / "fault.py"), kind], min(30.0, limit_s / len(kinds)))
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "train.log"
            log.write_text(ended.stdout, encoding="utf-8")
            why = run(launcher("why", "--format", "json", str(log)), 30)
        try:
            verdict: object = json.loads(why.stdout)
        except ValueError:
            verdict = why.stdout[-500:]
        found[kind] = {
            "exit_code": ended.returncode,
            "last_line": ended.stdout.strip().rpartition("\n")[2][-300:],
            "why": verdict,
        }
    return found


def step(limit_s: float) -> dict[str, object]:
    """Time the H100 config's step: ours in four ways, the eager twin in two, beside the roofline."""
    # What is compiled comes last: it may take as long as the others leave it.
    ways: list[tuple[str, list[str]]] = [("ours", []), ("ours", ["--channels-last"]), ("twin", [])]
    ways += [("ours", ["--compile"])]
    if HAS_GPU:
        ways += [("ours", ["--channels-last", "--compile"]), ("twin", ["--compile"])]
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + limit_s
    for model, flags in ways:
        left_s = (deadline - time.monotonic()) / (len(ways) - len(rows))
        command = [sys.executable, str(HERE / "step.py"), model, *flags]
        command += ["--steps", str(STEPS), "--batch", str(BATCH)]
        row: dict[str, Any] = {"model": model, "flags": " ".join(flags)}
        try:
            # A cache of its own: what is ended while it compiles leaves half a library behind.
            with tempfile.TemporaryDirectory() as cache:
                row |= last_json(run(command, left_s, TORCHINDUCTOR_CACHE_DIR=cache))
        except (RuntimeError, ValueError) as error:
            row["failed"] = str(error)[-600:]
        rows.append(row)
    return {"rows": rows, **judged(rows)}


def judged(rows: list[dict[str, Any]]) -> dict[str, object]:
    """Compare the measured steps with the roofline and with the twin."""
    measured = {f"{row['model']} {row['flags']}".strip(): row for row in rows if "step_ms" in row}
    ours, twin = measured.get("ours"), measured.get("twin")
    best = min((row["step_ms"] for row in measured.values() if row["model"] == "ours"), default=None)
    result: dict[str, object] = {}
    if best is not None and twin is not None:
        result["best_over_twin"] = round(best / twin["step_ms"], 3)
    if not HAS_GPU or ours is None:
        return result
    name = torch.cuda.get_device_name()
    gpu = next((gpu for gpu in taehv_roofline.GPUS if gpu.name.split()[0] in name), None)
    if gpu is None:
        return {**result, "expected": f"{name} is not in the roofline's table"}
    count = taehv_roofline.count_step(taehv_roofline.shipped, BATCH)
    expected_ms = count.seconds(gpu) * 1e3
    return {
        **result,
        "gpu": gpu.name,
        "expected_ms": round(expected_ms, 1),
        "measured_over_expected_speed": round(expected_ms / ours["step_ms"], 3),
        "mfu": round(count.flops / gpu.flops / (best or ours["step_ms"]) * 1e3, 3),
        "expected_peak_gib": round(count.peak / taehv_roofline.GIB, 1),
        "goals": {"measured_over_expected_speed": OF_EXPECTED, "best_over_twin": OF_TWIN},
        "goals_met": expected_ms / ours["step_ms"] >= OF_EXPECTED
        and "best_over_twin" in result
        and float(str(result["best_over_twin"])) <= OF_TWIN,
    }


def trainings(limit_s: float) -> dict[str, object]:
    """Train with the shipped trainer under DDP, ZeRO-1 and ZeRO-3: speed, memory, share of data wait."""
    found: dict[str, object] = {}
    n_processes = N_GPUS or 2
    kinds = {"ddp": [], "zero1": ["--zero_stage", "1"], "zero3": ["--zero_stage", "3"]}
    deadline = time.monotonic() + limit_s
    for kind, stage in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1"]
            command += ["--num_processes", str(n_processes), "--main_process_port", "0"]
            command += ["--mixed_precision", "bf16" if HAS_GPU else "no"]
            if stage:
                command += ["--use_deepspeed", "--deepspeed_multinode_launcher", "standard", *stage]
            elif n_processes > 1:
                command += ["--multi_gpu"]  # over gloo on a CPU; --cpu would start one process only
            command += [str(ROOT / "examples/taehv/train.py"), "--output-dir", folder, "--tracker", "none"]
            command += ["--config", str(ROOT / "configs/taehv_config_h100.py"), "--warmup-steps", "1"]
            command += ["--gradient-accumulation-steps", "1", "--max-train-steps", str(STEPS), "--log-every"]
            command += [str(max(1, STEPS // 5)), "--validation-clips", str(n_processes)]
            command += ["--checkpoint-every", "100000", "--clips-per-video", "1000"]
            command += ["--holdout-fraction", "0.2"]
            command += [] if HAS_GPU else [*SMALL, "--mixed-precision=no"]
            left_s = (deadline - time.monotonic()) / (len(kinds) - len(found))
            ended = run(command, left_s)
            metrics = Path(folder) / "metrics.jsonl"
            records = (
                [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
            )
            last: dict[str, Any] = next((r for r in reversed(records) if "steps_per_second" in r), {})
            peaks = [part for part in ended.stdout.split(" | ") if part.startswith("GPU: ")]
            found[kind] = {
                "exit_code": ended.returncode,
                "steps_per_second": last.get("steps_per_second"),
                "data_wait_share": last.get("data_wait_share"),
                "memory": peaks[-1].removeprefix("GPU: ") if peaks else None,
                **({"said": ended.stdout[-1500:]} if ended.returncode else {}),
            }
    if any(isinstance(value, dict) and value["exit_code"] for value in found.values()):
        raise RuntimeError(json.dumps(found))
    return found


def waits(limit_s: float) -> dict[str, object]:
    """Count where a step makes the host wait for the GPU: nowhere."""
    said: dict[str, object] = last_json(run([sys.executable, str(HERE / "waits.py"), *SMALL], limit_s))
    if said["waits"]:
        raise RuntimeError(f"a step waits for the GPU: {said['waits']}")
    return said


# The share of the time left that a part may take, when it is its turn.
PARTS: dict[str, tuple[Callable[[float], dict[str, object]], float]] = {
    "plan": (plan, 0.1),
    "doctor": (doctor, 0.15),
    "step": (step, 0.5 if HAS_GPU else 0.3),
    "waits": (waits, 0.2),
    "trainings": (trainings, 0.6),
    "faults": (faults, 0.5),
    "nccl": (nccl, 0.5),
    "ops": (ops, 0.9),
}


def main() -> int:
    """Run the parts and write down what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit-s", type=float, default=570)
    parser.add_argument("--output", type=Path, help="write the result there too")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not before what was started is ended
    deadline = time.monotonic() + given.limit_s
    result: dict[str, Any] = {
        "device": f"{N_GPUS} × {torch.cuda.get_device_name()}" if HAS_GPU else "rehearsal without a GPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    failed = []
    for name in given.only:
        part, share = PARTS[name]
        start = time.monotonic()
        try:
            result[name] = part(max(5.0, (deadline - start) * share))
        except Left as left:
            result[name] = f"left out: {left}"
        except Exception as error:
            failed.append(name)
            result[name] = {"failed": f"{type(error).__name__}: {error}"[-3000:]}
        print(f"{name}: {time.monotonic() - start:.0f} s{', FAILED' if name in failed else ''}", flush=True)
    goals_missed = isinstance(result.get("step"), dict) and result["step"].get("goals_met") is False
    text = json.dumps({**result, "failed": failed}, indent=2)
    print(text)
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(text + "\n", encoding="utf-8")
    return 1 if failed or goals_missed else 0


if __name__ == "__main__":
    sys.exit(main())
