"""Does the training distil, whatever the seeds? Teachers are trained, then students by the shipped trainer.

The question of a distilled autoencoder is what becomes of the teacher's latents: `teacher_psnr` is the PSNR
on unseen frames when they are decoded, `latent_error` the distance of the student's latents from them,
divided by their variance (1 is knowing nothing). Each way is tried with every pair of seeds; ways differ in
whose latents the decoder learns from and in how the two losses are weighed. Fails unless every student of the
shipped way has learned latents, and the shipped way decodes best by a margin.

    python benchmarks/taehv_distillation.py [--teachers 0 1 2 3 4] [--students 7 11] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ROOT / "examples" / "taehv" / "train.py"
CONFIG = ROOT / "configs" / "taehv_config_small.py"
SHIPPED = ("teacher", 20.0, 20.0)
# Whose latents the decoder learns from, and the weights of reconstruction and latents.
WAYS = (SHIPPED, ("teacher", 20.0, 0.1), ("student", 1.0, 1.0), ("student", 20.0, 0.1))
MEASURES = ("teacher_psnr", "latent_error", "psnr")
MARGIN_DB = 1.0
LATENT_ERROR = 0.2


def train(folder: Path, steps: int, *flags: str) -> dict[str, float]:
    """Run the trainer on one process; return its last validation."""
    command = [sys.executable, str(TRAIN), "--config", str(CONFIG), "--output-dir", str(folder)]
    command += ["--max-train-steps", str(steps), "--validate-every", str(steps), "--tracker", "none", *flags]
    command += ["--checkpoint-every", str(steps)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    subprocess.run(
        command,
        check=True,
        env={**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        cwd=folder.parent,
    )
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "validation_psnr" in record][-1]
    return {name.removeprefix("validation_"): value for name, value in last.items()}


def main() -> int:
    """Run the benchmark; returns 1 if the shipped way does not distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--teachers", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds")
    parser.add_argument("--students", type=int, nargs="+", default=[7, 11], help="seeds")
    parser.add_argument("--shipped-only", action="store_true", help="leave out the ways to compare with")
    parser.add_argument("--output", type=Path, help="write the result there too")
    given = parser.parse_args()
    ways = WAYS[:1] if given.shipped_only else WAYS
    measured: dict[tuple[str, float, float], list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for teacher in given.teachers:
            train(folder / f"teacher{teacher}", given.steps, "--seed", str(teacher))
            weights = folder / f"teacher{teacher}" / "checkpoints" / "latest" / "ema.safetensors"
            for student in given.students:
                for number, way in enumerate(ways):
                    decoder_input, reconstruction, latents = way
                    values = train(
                        folder / f"student{teacher}-{student}-{number}",
                        given.steps,
                        f"--seed={student}",
                        f"--teacher-checkpoint={weights}",
                        f"--decoder-input={decoder_input}",
                        f"--reconstruction-loss-weight={reconstruction}",
                        f"--encoder-loss-weight={latents}",
                        f"--gradient-clipping={reconstruction}",  # gradients grow with the weight
                    )
                    measured[way].append({name: values[name] for name in MEASURES})
                    row = {"teacher": teacher, "student": student, "way": way, **measured[way][-1]}
                    print(json.dumps(row), flush=True)
    means = {way: summary(values) for way, values in measured.items()}
    best_other = max(
        (of["teacher_psnr"]["mean"] for way, of in means.items() if way != SHIPPED and way[0] == "student"),
        default=0,
    )
    result = {
        "steps": given.steps,
        "pairs_of_seeds": len(measured[SHIPPED]),
        "rows": [{"way": way, **of} for way, of in means.items()],
        "margin_db": MARGIN_DB,
        "latent_error_limit": LATENT_ERROR,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    shipped = means[SHIPPED]
    decodes = shipped["teacher_psnr"]["mean"] >= best_other + MARGIN_DB
    return 0 if decodes and shipped["latent_error"]["max"] <= LATENT_ERROR else 1


def summary(
    values: list[dict[str, float]], measures: tuple[str, ...] = MEASURES
) -> dict[str, dict[str, float]]:
    """Return mean and range of each measure."""
    columns = {name: [row[name] for row in values] for name in measures}
    return {
        name: {
            "mean": round(statistics.fmean(column), 3),
            "min": round(min(column), 3),
            "max": round(max(column), 3),
        }
        for name, column in columns.items()
    }


if __name__ == "__main__":
    sys.exit(main())
