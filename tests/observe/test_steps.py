"""Which lines of an output name a step, and which only speak of one."""

from __future__ import annotations

import pytest

from platform_launch.observe.steps import NamedStep, named_steps


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Step 120/1000 | loss 3.1", NamedStep(120, 1000)),
        ("step 5", NamedStep(5, None)),
        ("step: 10  loss: 7.9  memory: 3.1GiB(4%)  tps: 1,200", NamedStep(10, None)),
        ("[rank0]:[titan] 2025-01-01 10:00:00,123 - root - INFO - step: 10  loss: 7.9", NamedStep(10, None)),
        ("[default0]:2025-01-01T10:00:00 INFO train.py:71 step 10 loss=0.5", NamedStep(10, None)),
        (" iteration       10/     500 | consumed samples:         2560 |", NamedStep(10, 500)),
        ("Epoch 3, step 40 of 80: loss 0.3", NamedStep(40, 80)),
        ("rank 0 step 5 loss 0.3", NamedStep(5, None)),
        ("step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]", NamedStep(10, None)),
        ("{'loss': 0.5, 'grad_norm': 1.2, 'step': 10, 'epoch': 0.1}", NamedStep(10, None)),
        ("loss=0.5 global_step=12 lr=0.001", NamedStep(12, None)),
        ("  5%|\u258c         | 5/100 [00:10<03:10,  2.00s/it]", NamedStep(5, 100)),
        (" 45/80 [00:01<00:01, 40.1it/s]", NamedStep(45, 80)),
        ("Training:  45%|####      | 45/100 [00:01<00:02]", NamedStep(45, 100)),
        ("Epoch 2:  45%|####5     | 45/100 [00:01<00:02, 30.0it/s, v_num=0]", NamedStep(245, None)),
    ],
)
def test_line_of_progress_names_its_step(line: str, step: NamedStep) -> None:
    assert named_steps(line) == [step]


@pytest.mark.parametrize(
    "line",
    [
        "rank 0 starts at step 6",
        "resuming from step 400",
        "INFO: training resumes from step 0",
        "train.py: error: argument --steps: invalid int value: '5x'",
        "train.py: error: unrecognized arguments: --step 5 --lr 3",
        "+ python train.py --steps 100 --step=5",
        "Namespace(batch_size=8, max_steps=100, save_steps=50)",
        "step 6 failed with an error",
        "Step 1 is to download the data",
        "[node 0] 10:00:00 [INFO] the last two restarts made no progress: each ended at step 40",
        "Loading checkpoint shards: 100%|##########| 4/4 [00:01<00:00,  3.1it/s]",
        "Map:  45%|####5     | 4500/10000 [00:01<00:02, 3000.0 examples/s]",
        "Downloading data: 100%|##########| 12/12 [00:01<00:00]",
        "loading /data/step_40/model.pt",
        "Traceback (most recent call last):",
        "  File '/job/train.py', line 40, in step",
    ],
)
def test_line_that_only_speaks_of_steps_names_none(line: str) -> None:
    assert named_steps(line) == []
