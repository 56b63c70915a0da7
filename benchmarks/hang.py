"""What a hang costs: seconds until it is named, beside bare ``torchrun``; and what watching costs a step.

    python benchmarks/hang.py [--timeout 60] [--hang-after 10] [--rounds 7] [--only hangs|cost|counted]
        [--training all_reduce|taehv] [FAULT...]

Hangs: two ranks of a real training on gloo (tests/lab/hanging.py) under ``torchrun`` alone, whose collectives
give up after --timeout, and under this launcher with --on-hang stop. The clock starts with the process. Named
means that an output of the launcher says "rank 1", which is to blame, beside a reason.

Cost: the median step of two trainings, a loop of small all_reduces and the small TAEHV under DDP, in rounds
of three that follow each other: twice without the hook and once with it and a monitor that asks. The ratio is
that of the medians of the paired rounds; the first two tell how far two equal runs are apart. Goal: 1.01. The
memory is the launcher's own (PSS) while it watches. Goal: 45 MiB. Needs the ``dev`` extra.

Counted: what a step costs, without a clock, which other work on the machine disturbs by more than the goal.
Both trainings run once, hooked, and the kernel's own account (schedstat) tells how long the hook's threads in
a rank ran: while nobody asks, and for each question, which the monitor asks every 15 s at most. The ratio is
that of a rank that stood still for as long as a question computes, which is more than it does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from platform_launch.observe import FOLDER_VARIABLE, HOOK
from platform_launch.observe.monitor import ASK_S
from platform_launch.observe.node_probe import NodeProbe

ROOT = Path(__file__).resolve().parent.parent

TRAINING = ROOT / "tests" / "lab" / "hanging.py"
FAULTS = (
    *("sleep", "loop", "gil", "stop", "dead-lock", "other-collective", "skip", "data-stop", "data-fifo"),
    *("leave", "segfault", "sigkill", "sigterm", "sigint", "abort", "exception", "async-exception"),
)
RANK_1 = re.compile(r"(?i)rank[ s:]*1\b")
GOAL_RATIO = 1.01
GOAL_MIB = 45
# Of torch's server, which the hook starts.
SERVER = "pt_workerserver"
IDLE_S, WINDOWS, QUESTIONS = 20.0, 8, 5
# Enough steps for the recorder to be full, of some 40 bytes a line.
RECORDED_BYTES = {"all_reduce": 100_000, "taehv": 2_000}
STEPS = """
import os, statistics, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
kept = os.environ.get("STEPS") if dist.get_rank() == 0 else None
record = open(kept, "w", buffering=1) if kept else None
torch.set_num_threads(1)
{prepare}
times, parent = [], os.getppid()
for _ in range(int(sys.argv[1])):
    if os.getppid() != parent:
        os._exit(0)  # its launcher was killed
    began = time.perf_counter()
    {step}
    times.append(time.perf_counter() - began)
    if record is not None:
        print(time.time(), times[-1], file=record)
if dist.get_rank() == 0:
    print("median", statistics.median(times[len(times) // 10 :]), flush=True)
dist.destroy_process_group()
"""
TAEHV = f"""
sys.path.append({str(ROOT / "examples" / "taehv")!r})
from taehv_trainer.architecture import ARCHITECTURES
from taehv_trainer.model import TAEHV
model = torch.nn.parallel.DistributedDataParallel(TAEHV(ARCHITECTURES["small"]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
videos = torch.rand(1, 12, 3, 32, 32)
def step():
    _, reconstruction = model(videos)
    (reconstruction - videos[:, :-3]).abs().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
# What is trained, and how many of its steps make one of --steps.
TRAININGS = {
    "all_reduce": (STEPS.format(prepare="number = torch.ones(256)", step="dist.all_reduce(number)"), 1),
    "taehv": (STEPS.format(prepare=TAEHV, step="step()"), 20),
}


def main() -> None:
    """Measure, and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--hang-after", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20_000, help="of the all_reduces")
    parser.add_argument("--only", choices=["hangs", "cost", "counted"])
    parser.add_argument("--training", choices=TRAININGS, help="measure the cost of this one only")
    parser.add_argument("faults", nargs="*", default=FAULTS)
    options = parser.parse_args()
    trainings = [options.training] if options.training else [*TRAININGS]
    document: dict[str, object] = {}
    if options.only in (None, "hangs"):
        document["hangs"] = [hang(fault, options.timeout, options.hang_after) for fault in options.faults]
    if options.only in (None, "cost"):
        document["cost"] = cost(options.rounds, options.steps, trainings)
    if options.only in (None, "counted"):
        document["counted"] = {name: counted(name) for name in trainings}
    print(json.dumps(document, indent=2))


def counted(training: str) -> dict[str, object]:
    """Count what the hook's threads compute in a rank: while nobody asks, and for each question."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "observed")
        folder.mkdir(mode=0o700)
        script, steps = Path(name, "steps.py"), Path(name, "steps")
        script.write_text(TRAININGS[training][0])
        variables = {FOLDER_VARIABLE: str(folder), "PYTHONPATH": str(HOOK), "STEPS": str(steps)}
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
        with subprocess.Popen(
            [*command, "1000000000"],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                while not steps.exists() or steps.stat().st_size < RECORDED_BYTES[training]:
                    if process.poll() is not None:
                        sys.exit(f"the training ended with exit code {process.returncode}")
                    time.sleep(0.5)
                probe = NodeProbe(folder, 0, "here")
                pids = [one.pid for one in probe.ranks()]
                before, done = hooks_work(pids), len(steps.read_text().splitlines())
                time.sleep(IDLE_S)
                idle = [after - first for after, first in zip(hooks_work(pids), before, strict=True)]
                done = len(steps.read_text().splitlines()) - done
                asked = [asked_s(probe, pids) for _ in range(WINDOWS)]
            finally:
                end_all(process)
    ratios = [1 + cpu_s / ASK_S for cpu_s, _ in asked]
    return {
        "ratio": round(statistics.median(ratios), 5),
        "ratios": [round(ratio, 5) for ratio in ratios],
        "cpu_ms_of_a_question_in_a_rank": round(statistics.median(cpu_s for cpu_s, _ in asked) * 1000, 2),
        "cpu_ms_of_a_question_in_the_launcher": round(statistics.median(own for _, own in asked) * 1000, 2),
        "while_nobody_asks": {"steps": done, "cpu_ns": idle[0], "times_run": idle[1]},
        "asked_every_s": ASK_S,
        "goal": GOAL_RATIO,
    }


def hooks_work(pids: Sequence[int]) -> list[int]:
    """Return the nanoseconds that the hook's threads in these processes ran, and how often they did."""
    work = [0, 0]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().strip() == SERVER:
                ran, _, times = map(int, (task / "schedstat").read_text().split())
                work = [work[0] + ran, work[1] + times]
    return work


def asked_s(probe: NodeProbe, pids: Sequence[int]) -> tuple[float, float]:
    """Ask as the monitor does while work goes on; return a question's CPU seconds, in a rank and here."""
    before, own = hooks_work(pids), time.process_time()
    for _ in range(QUESTIONS):
        probe.collectives()
    own = time.process_time() - own
    return (hooks_work(pids)[0] - before[0]) / 1e9 / QUESTIONS / len(pids), own / QUESTIONS


def hang(fault: str, timeout_s: float, hang_after_s: float) -> dict[str, object]:
    """Run one fault both ways."""
    training = [str(TRAINING), fault, "--timeout", str(timeout_s)]
    bare = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *training]
    ours = [sys.executable, "-m", "platform_launch", "run", "--launcher", "torchrun", "--no-doctor"]
    ours += ["--nproc-per-node", "2", "--hang-after", str(hang_after_s), "--on-hang", "stop"]
    ours += ["--script", str(TRAINING), "--", *training[1:]]
    found: dict[str, object] = {"fault": fault}
    for name, command in (("torchrun", bare), ("platform-launch", ours)):
        ended_s, code, output = run(command, limit_s=timeout_s * 2 + 60)
        said = [line for line in output.splitlines() if RANK_1.search(line)]
        found[name] = {
            "ended_s": None if ended_s is None else round(ended_s, 1),
            "exit_code": code,
            "named": any(tells(line) for line in said),
        }
    print(json.dumps(found), file=sys.stderr, flush=True)  # what is known if the rest takes too long
    return found


def tells(line: str) -> bool:
    """Say whether a line that speaks of rank 1 gives a reason, and not only that it was connected to."""
    return any(word in line.lower() for word in ("[no-progress", "error", "signal", "exitcode", "sig"))


def run(command: list[str], limit_s: float) -> tuple[float | None, int | None, str]:
    """Return when a command ended (None: not within the limit), its exit code and its output."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("release", "shard"):
            os.mkfifo(Path(folder, name))
        if "run" in command[:5] and "platform_launch" in command:
            at = command.index("--")
            command = [*command[:at], "--log-dir", folder, *command[at:]]
        began = time.monotonic()
        with Path(folder, "output").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--folder", folder],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
                ended_s: float | None = time.monotonic() - began
            except subprocess.TimeoutExpired:
                code = ended_s = None
            finally:
                end_all(process)
        return ended_s, code, Path(folder, "output").read_text(errors="replace")


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left: a stopped rank outlives its launcher."""
    for pid in [process.pid, *sessions(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def sessions(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(int(stat.parent.name))
    return found


def cost(rounds: int, steps: int, trainings: Sequence[str]) -> dict[str, object]:
    """Compare steps with and without the hook, in alternating order."""
    found: dict[str, object] = {}
    for name in trainings:
        text, share = TRAININGS[name]
        ratios, noise, memory = [], [], [0.0]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "steps.py")
            script.write_text(text)
            base = [sys.executable, "-m", "platform_launch", "run", "--launcher", "torchrun", "--no-doctor"]
            base += ["--nproc-per-node", "2", "--log-dir", folder, "--script", str(script)]
            for number in range(rounds):
                ways = {
                    "without": ["--no-observe"],
                    "again": ["--no-observe"],
                    "with": ["--hang-after", "20"],
                }
                order = list(ways) if number % 2 else list(ways)[::-1]
                runs = {way: run_steps([*base, *ways[way], "--", str(steps // share)]) for way in order}
                ratios.append(runs["with"][0] / runs["without"][0])
                noise.append(runs["again"][0] / runs["without"][0])
                memory.append(runs["with"][1])
        found[name] = {
            "ratio": round(statistics.median(ratios), 4),
            "ratio_of_equal_runs": round(statistics.median(noise), 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
            "ratios_of_equal_runs": [round(ratio, 4) for ratio in noise],
            "goal": GOAL_RATIO,
            "launcher_mib": round(max(memory), 1),
            "goal_mib": GOAL_MIB,
        }
    return found


def run_steps(command: list[str]) -> tuple[float, float]:
    """Run a training; return its median step in seconds, and the most memory of its launcher in MiB."""
    most = 0.0
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            while process.poll() is None:
                most = max(most, proportional_mib(process.pid))
                time.sleep(1)
        output.seek(0)
        text = output.read()
    found = [line.rpartition("median ")[2] for line in text.splitlines() if "median " in line]
    if not found:
        sys.exit(f"no step was measured: {text[-2000:]}")
    return float(found[0]), most


def proportional_mib(pid: int) -> float:
    """Return the memory of a process, shared pages by their share; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
