"""8 × H100 (80 GB), one node: the full model on 480×720 clips, 192 clips per step."""

from taehv_trainer.config import TrainConfig

config = TrainConfig(
    model="full",
    batch_size=12,  # 45 GiB, and some more for workspaces (benchmarks/taehv_roofline.py)
    gradient_accumulation_steps=2,
    learning_rate=1e-4,
    max_train_steps=100_000,
    warmup_steps=1000,
    height=480,
    width=720,
    num_frames=12,
    num_workers=4,
    # For your own videos, set data_root (and annotation_file for a selection); without them it trains on the
    # shipped sample. Decoding long high-resolution videos starves GPUs: run examples/taehv/prepare_data.py.
    # For a teacher, set teacher_checkpoint or teacher_latents, and encoder_loss_weight=20.0, as much as the
    # reconstruction. compile=True and channels_last=True change only the speed.
    reconstruction_loss_weight=20.0,
    gradient_clipping=20.0,  # gradients grow with the weight: 1.0 would clip every step
    mixed_precision="bf16",
    output_dir="runs/taehv_h100",
    checkpoint_every=1000,
    checkpoints_total_limit=5,
    resume_from_checkpoint="latest",
)
