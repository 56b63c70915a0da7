"""A worker of `benchmarks/gpu`: train a little and list where a step makes the host wait for the GPU."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples" / "taehv"))
from taehv_trainer.flags import parse_arguments
from taehv_trainer.training import Training

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = 8
with_gpu = torch.cuda.is_available()
config = str(ROOT / "configs" / "taehv_config_small.py")
with tempfile.TemporaryDirectory() as folder:
    flags = [
        "--config",
        config,
        "--output-dir",
        folder,
        "--max-train-steps",
        str(STEPS),
        "--warmup-steps",
        "1",
    ]
    flags += [
        "--log-every",
        "1000",
        "--validate-every",
        "1000",
        "--checkpoint-every",
        "1000",
        "--tracker",
        "none",
    ]
    training = Training(parse_arguments([*flags, *sys.argv[1:]]))
    original, answer = training._train_step, training._outcome.after_step

    def watched(*arguments: object) -> object:
        """Take a step; from the third on, whatever synchronizes warns."""
        if with_gpu and training.step >= 3:
            torch.cuda.set_sync_debug_mode("warn")
        return original(*arguments)  # type: ignore[arg-type]

    def agreed(norm: object) -> object:
        """End the watch with the step's outcome, after the average of the weights."""
        outcome = answer(norm)  # type: ignore[arg-type]
        if with_gpu:
            torch.cuda.set_sync_debug_mode("default")
        return outcome

    training._train_step = watched  # type: ignore[method-assign, assignment]
    training._outcome.after_step = agreed  # type: ignore[method-assign, assignment]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.run()
found = sorted({f"{w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)})
print(json.dumps({"steps_watched": STEPS - 3 if with_gpu else 0, "waits": found}))
