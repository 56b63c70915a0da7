"""The learning rate as a function of the step, so there is nothing to save and restore."""

from __future__ import annotations

import math

from taehv_trainer.config import TrainConfig


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Return the rate of step ``step`` (from 0): linear warm-up, then a cosine down to the minimum."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.max_train_steps - config.warmup_steps)
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + span * (1 + math.cos(math.pi * min(1.0, progress))) / 2
