"""16 × H100 (80 GB), two nodes: the full model on 480×720 clips, 128 clips a step."""

from taehv_trainer.config import TrainConfig

config = TrainConfig(
    model="full",
    batch_size=8,
    gradient_accumulation_steps=1,
    learning_rate=1e-4,
    max_train_steps=100_000,
    warmup_steps=1000,
    height=480,
    width=720,
    num_frames=12,
    num_workers=4,
    # Give your own videos: data_root, and annotation_file for a selection. Without them the shipped sample
    # is trained on. A teacher takes teacher_checkpoint or teacher_latents and encoder_loss_weight=0.1.
    reconstruction_loss_weight=20.0,
    mixed_precision="bf16",
    output_dir="runs/taehv_16gpu_h100",
    checkpoint_every=1000,
    checkpoints_total_limit=5,
    resume_from_checkpoint="latest",
)
