"""The small default, for any machine: 19 dB on unseen frames (mean colour: 14 dB), a minute on 2 cores."""

from taehv_trainer.config import TrainConfig

config = TrainConfig(
    model="small",
    batch_size=2,
    gradient_accumulation_steps=1,
    learning_rate=3e-3,
    max_train_steps=240,
    warmup_steps=20,
    height=64,
    width=64,
    num_frames=8,
    resize_short_side=128,
    clips_per_video=64,
    holdout_fraction=0.15,
    ema_decay=0.95,
    output_dir="runs/taehv_small",
    log_every=20,
    validate_every=40,
    checkpoint_every=120,
    checkpoints_total_limit=2,
    resume_from_checkpoint="latest",
)
