"""Weights & Biases, without an account: ``WANDB_MODE=offline``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOGS = """
import sys
from accelerate import Accelerator
from taehv_trainer import session
from taehv_trainer.config import TrainConfig

config = TrainConfig(tracker="wandb", output_dir=sys.argv[1])
accelerator = Accelerator(log_with=session.tracker_of(config), project_dir=sys.argv[1], cpu=True)
session.start_tracker(accelerator, config, "id7", int(sys.argv[2]))
accelerator.log({"loss": 0.5}, step=int(sys.argv[2]) + 1)
accelerator.end_training()
"""


def test_a_resume_continues_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (pip install wandb)")
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    env["PYTHONPATH"] = os.pathsep.join((str(ROOT / "examples" / "taehv"), os.environ.get("PYTHONPATH", "")))
    for step in ("0", "2"):
        done = subprocess.run(
            [sys.executable, "-c", LOGS, str(tmp_path), step],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.rglob("*.wandb")} == {"run-id7.wandb"}
