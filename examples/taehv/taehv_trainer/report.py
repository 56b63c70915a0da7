"""What a run reports: lines and a progress bar for people, ``metrics.jsonl`` and a tracker for programs."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from tqdm import tqdm  # type: ignore[import-untyped]

from taehv_trainer.metrics import psnr_db


def log_line(level: str, text: str) -> None:
    """Write one line ``[LEVEL] text`` without tearing a progress bar apart."""
    tqdm.write(f"[{level}] {text}", file=sys.stdout)
    sys.stdout.flush()


class Report:
    """What the main process reports; on other processes every call does nothing."""

    def __init__(
        self, accelerator: Accelerator, folder: Path, step: int, max_steps: int, clips_per_step: int
    ) -> None:
        self._accelerator = accelerator
        self._writes = accelerator.is_main_process
        self._max_steps = max_steps
        self._clips_per_step = clips_per_step
        self.metrics_file = folder / "metrics.jsonl"
        self.curve: list[tuple[int, float]] = []
        if self._writes:
            self._forget_after(step)
        self._bar = tqdm(
            total=max_steps, initial=step, unit="step", disable=not (self._writes and sys.stderr.isatty())
        )
        self._since = (step, time.monotonic())

    def info(self, text: str, level: str = "INFO") -> None:
        """Write one line."""
        if self._writes:
            log_line(level, text)

    def advance(self) -> None:
        """Count one step in the progress bar."""
        self._bar.update()

    def step(self, step: int, means: Mapping[str, float], learning_rate: float) -> None:
        """Report a finished step (from 1): means since the last report, as `Tally.read` returns them."""
        since, then = self._since
        now = time.monotonic()
        speed = (step - since) / max(now - then, 1e-9)
        self._since = (step, now)
        values = {name: mean for name, mean in means.items() if name != "mse"}
        values["psnr"] = psnr_db(means["mse"])
        parts = [
            f"Step {step}/{self._max_steps}",
            f"Loss: {values['loss']:.3g}",
            f"PSNR: {values['psnr']:.1f} dB",
        ]
        if "encoder" in values:
            parts.append(f"Latents: {values['encoder']:.3g} ({values['latent_error']:.2f} of their variance)")
        if self._accelerator.device.type == "cuda":
            parts.append(f"GPU: {torch.cuda.max_memory_allocated() / 1e9:.0f}GB")
        parts.append(f"{speed:.1f} steps/sec")
        parts.append(f"{speed * self._clips_per_step:.1f} clips/sec")
        parts.append(f"Gradient: {values['gradient_norm']:.3g}")
        if values["clipped_share"]:
            parts.append(f"clipped: {values['clipped_share']:.0%}")
        left = timedelta(seconds=round((self._max_steps - step) / speed))
        parts.append(f"ETA: {left}")
        if self._writes:
            tqdm.write(" | ".join(parts), file=sys.stdout)
            sys.stdout.flush()
        self._record(step, **values, learning_rate=learning_rate, steps_per_second=speed)

    def validation(self, step: int, values: dict[str, float]) -> None:
        """Report the quality on unseen frames after ``step`` steps."""
        if math.isfinite(values["psnr"]):
            self.curve.append((step, values["psnr"]))
        said = f"PSNR {values['psnr']:.2f} dB, SSIM {values['ssim']:.3f}, sharpness {values['sharpness']:.2f}"
        if "latent_error" in values:
            said += (
                f"; of the teacher's latents: PSNR {values['teacher_psnr']:.2f} dB, "
                f"distance {values['latent_error']:.3f} of their variance"
            )
        self.info(f"Validation after step {step}: {said}")
        self._record(step, **{f"validation_{name}": value for name, value in values.items()})
        self._since = (step, time.monotonic())

    def picture(self, step: int, image: Image.Image) -> None:
        """Show a picture in the tracker."""
        for tracker in self._accelerator.trackers:
            options = {"dataformats": "NHWC"} if tracker.name == "tensorboard" else {}
            tracker.log_images({"reconstruction": np.asarray(image)[None]}, step=step, **options)

    def close(self) -> None:
        """Take the progress bar away."""
        self._bar.close()

    def _record(self, step: int, **values: float) -> None:
        if not self._writes:
            return
        # JSON has no NaN: what is not finite is null.
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        self._accelerator.log({name: value for name, value in finite.items() if value is not None}, step=step)

    def _forget_after(self, step: int) -> None:
        """Keep the records up to the step that is resumed from: later ones will be written again."""
        if not self.metrics_file.exists():
            return
        records = [line for line in self.metrics_file.read_text(encoding="utf-8").splitlines() if line]
        kept = [record for record in map(_parse, records) if record.get("step", step + 1) <= step]
        if step == 0:
            kept = []
        self.curve = [(r["step"], r["validation_psnr"]) for r in kept if r.get("validation_psnr")]
        unfinished = self.metrics_file.with_suffix(".tmp")
        unfinished.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        unfinished.replace(self.metrics_file)


def _parse(line: str) -> dict[str, Any]:
    """Read one record; {} for a line that a killed process left half-written."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
