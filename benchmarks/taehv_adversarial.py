"""What the adversarial loss gains: trained weights are fine-tuned with it, and without it, for as long.

For each seed a small model is trained as shipped, and then fine-tuned both ways from the same weights.
`sharpness` is the energy of fine detail on unseen frames, divided by the video's: blur brings it towards 0.
Fails unless the adversarial loss makes every model at least twice as sharp for at most 1.5 dB of PSNR.

    python benchmarks/taehv_adversarial.py [--seeds 0 1 2] [--weight 0.02] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from taehv_distillation import summary, train

MEASURES = ("psnr", "ssim", "sharpness")
TIMES_AS_SHARP = 2.0
MOST_DB = 1.5


def main() -> int:
    """Run the benchmark; returns 1 if the gain is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=240, help="of the training before")
    parser.add_argument("--more", type=int, default=800, help="steps of fine-tuning")
    parser.add_argument("--weight", type=float, default=0.02)
    parser.add_argument("--output", type=Path, help="write the result there too")
    given = parser.parse_args()
    ways = {"without": (), "with": (f"--adversarial-loss-weight={given.weight}",)}
    measured: dict[str, list[dict[str, float]]] = {"before": [], **{way: [] for way in ways}}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in given.seeds:
            before = Path(temporary) / f"{seed}"
            measured["before"].append(train(before, given.steps, f"--seed={seed}"))
            weights = before / "checkpoints" / "latest" / "ema.safetensors"
            for way, flags in ways.items():
                folder = Path(temporary) / f"{seed}-{way}"
                start = (f"--init-from={weights}", "--learning-rate=5e-4", f"--seed={seed}")
                measured[way].append(train(folder, given.more, *start, *flags))
                print(json.dumps({"seed": seed, "way": way, **measured[way][-1]}), flush=True)
    pairs = list(zip(measured["without"], measured["with"], strict=True))
    result = {
        "weight": given.weight,
        "steps": [given.steps, given.more],
        "seeds": given.seeds,
        "rows": {way: summary(values, MEASURES) for way, values in measured.items()},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    sharper = all(one["sharpness"] >= TIMES_AS_SHARP * other["sharpness"] for other, one in pairs)
    close = all(other["psnr"] - one["psnr"] <= MOST_DB for other, one in pairs)
    return 0 if sharper and close else 1


if __name__ == "__main__":
    sys.exit(main())
