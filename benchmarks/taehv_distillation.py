"""Does the training distil? A teacher is trained, then students of the same size by the shipped trainer.

The question of a distilled autoencoder is what becomes of the teacher's latents: `teacher_psnr` is the PSNR
on unseen frames when they are decoded, `latent_error` the distance of the student's latents from them,
divided by their variance (1 is knowing nothing). The rows differ in whose latents the decoder learns from,
and in how the two losses are weighed. Fails unless the shipped way is the best of them at decoding, by a
margin, and has learned latents.

    python benchmarks/taehv_distillation.py [--steps 240] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ROOT / "examples" / "taehv" / "train.py"
CONFIG = ROOT / "configs" / "taehv_config_small.py"
SHIPPED = ("teacher", 20.0, 20.0)
# Whose latents the decoder learns from, and the weights of reconstruction and latents.
WAYS = (("student", 20.0, 0.1), ("student", 1.0, 1.0), ("teacher", 20.0, 0.1), ("teacher", 1.0, 1.0), SHIPPED)
MARGIN_DB = 1.0
LATENT_ERROR = 0.9


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
    """Run the benchmark; returns 1 when the shipped way does not distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--output", type=Path, help="write the result there too")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        teacher = train(folder / "teacher", given.steps, "--seed", "1")
        latest = (
            folder / "teacher" / "checkpoints" / (folder / "teacher/checkpoints/latest").read_text().strip()
        )
        for decoder_input, reconstruction, latents in WAYS:
            values = train(
                folder / f"student{len(rows)}",
                given.steps,
                f"--teacher-checkpoint={latest / 'ema.safetensors'}",
                f"--decoder-input={decoder_input}",
                f"--reconstruction-loss-weight={reconstruction}",
                f"--encoder-loss-weight={latents}",
            )
            row = {"decoder_input": decoder_input, "weights": f"{reconstruction:g} : {latents:g}"}
            rows.append(row | {n: round(values[n], 3) for n in ("teacher_psnr", "latent_error", "psnr")})
            print(json.dumps(rows[-1]), flush=True)
    shipped = rows[WAYS.index(SHIPPED)]
    others = [row["teacher_psnr"] for row in rows if row["decoder_input"] == "student"]
    result = {
        "steps": given.steps,
        "teacher_own_psnr": round(teacher["psnr"], 3),
        "rows": rows,
        "shipped_over_best_student_way_db": round(shipped["teacher_psnr"] - max(others), 3),
        "margin_db": MARGIN_DB,
        "latent_error_limit": LATENT_ERROR,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    distils = shipped["teacher_psnr"] >= max(others) + MARGIN_DB and shipped["latent_error"] <= LATENT_ERROR
    return 0 if distils else 1


if __name__ == "__main__":
    sys.exit(main())
