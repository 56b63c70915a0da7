"""What the stages of ZeRO cost for a model of this size: how many collectives a step takes.

Two processes train the full model's parameters over gloo under each stage, as DeepSpeed runs them; the
profiler counts what they say to each other in one step. The counts are the same on GPUs, where each
collective is at least one kernel and its latency. The shipped yaml files take the stage with the fewest
collectives whose optimizer state is divided.

    python benchmarks/taehv_collectives.py [--stages 0 1 2 3] [--accumulation 1] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEP = 2  # the one that is counted: the first ones set things up


def count(stage: int, accumulation: int, model: str) -> dict[str, object]:
    """Launch two processes under a stage of ZeRO; return what the first one counted."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1"]
        command += ["--num_processes", "2", "--use_deepspeed", "--zero_stage", str(stage)]
        command += ["--gradient_accumulation_steps", str(accumulation), "--mixed_precision", "no"]
        command += ["--deepspeed_multinode_launcher", "standard", "--main_process_port", "0"]
        command += [str(Path(__file__).resolve()), "--worker", str(folder / "counted.json")]
        command += ["--accumulation", str(accumulation), "--model", model]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        cpu = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, env={**kept, **cpu}, cwd=folder, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"stage {stage} did not train:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
        counted: dict[str, object] = json.loads((folder / "counted.json").read_text())
        return {"stage": stage, "accumulation": accumulation, **counted}


def work(output: Path, accumulation: int, model: str) -> None:
    """Train a few steps and count the collectives of one of them."""
    sys.path.insert(0, str(ROOT / "examples" / "taehv"))
    import torch

    from taehv_trainer import report
    from taehv_trainer.config import TrainConfig
    from taehv_trainer.training import Training

    config = TrainConfig(
        model=model,  # type: ignore[arg-type]
        batch_size=1,
        gradient_accumulation_steps=accumulation,
        height=16,
        width=16,
        num_frames=4,
        max_train_steps=STEP + 1,
        log_every=1000,
        validate_every=1000,
        validation_clips=2,
        checkpoint_every=1000,
        output_dir="run",
        tracker="none",
        resume_from_checkpoint="none",
    )
    report.log_line = lambda *_: None
    training = Training(config)
    counted: Counter[str] = Counter()
    original = training._train_step

    def counting(*arguments: object) -> object:
        if training.step != STEP:
            return original(*arguments)  # type: ignore[arg-type]
        with torch.profiler.profile(record_shapes=True) as profile:
            norm = original(*arguments)  # type: ignore[arg-type]
            training.averaged.update(training._model, training.step)
            training._outcome.after_step(norm)
        for event in profile.events():
            if event.name.startswith("c10d::"):
                counted[event.name.removeprefix("c10d::").rstrip("_")] += 1
        return norm

    training._train_step = counting  # type: ignore[method-assign, assignment]
    training._save = lambda: None  # type: ignore[method-assign]
    training._finish = lambda *_: None  # type: ignore[method-assign]
    training.run()
    if training.accelerator.is_main_process:
        output.write_text(json.dumps({"collectives": sum(counted.values()), **counted}))


def main() -> int:
    """Run the benchmark; returns 1 when the shipped stages are not those that the counts justify."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--model", default="full")
    parser.add_argument("--output", type=Path, help="write the result there too")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.worker, given.accumulation, given.model)
        return 0
    rows = []
    for stage in given.stages:
        rows.append(count(stage, given.accumulation, given.model))
        print(json.dumps(rows[-1]), flush=True)
    if given.output is not None:
        given.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
