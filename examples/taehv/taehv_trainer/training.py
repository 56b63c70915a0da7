"""The training itself: from a checked config to a checkpoint, metrics and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from taehv_trainer.checkpoints import Checkpoints, Progress, read_progress
from taehv_trainer.clips import Clip, ClipDataset, ClipStream, load_batches
from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.model import TAEHV
from taehv_trainer.objective import Objective, scaled
from taehv_trainer.prefetch import on_device
from taehv_trainer.report import Report, say
from taehv_trainer.schedule import learning_rate_at
from taehv_trainer.session import every_node_sees, lock_output, same_everywhere, start_session, start_tracker
from taehv_trainer.sources import SAMPLE, find_sources
from taehv_trainer.stopping import StopRequest
from taehv_trainer.tally import Tally
from taehv_trainer.validation import Validation
from taehv_trainer.weights import AveragedWeights, load_model, load_weights


class Training:
    """One run on one process: everything a step needs, built in the order in which it can fail."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = Path(config.output_dir)
        sources = find_sources(config)
        self.accelerator = start_session(config)
        torch.manual_seed(config.seed)
        model = TAEHV(
            config.architecture,
            activation_checkpointing=config.activation_checkpointing,
            channels_last=config.channels_last,
        )
        self._stop = StopRequest(self.accelerator.device)
        if config.init_from is not None:
            load_weights(model, Path(config.init_from))
        self._teacher = _load_teacher(config, self.accelerator)
        self._skipped: dict[str, str] = {}
        self._dataset = ClipDataset(sources, config)
        self._validation = Validation(
            self._dataset,
            config.validation_clips,
            self.accelerator,
            self._target_latents,
            distils=config.encoder_loss_weight > 0,
        )
        for clip in self._validation.clips:
            self._note_skipped(clip)
        self._checkpoints = self._open_checkpoints()
        self._lock = lock_output(self.folder, acquires=self._finishes)
        start_tracker(self.accelerator, config)
        self._prepare(model)
        self.step = 0
        self._reads_seen = 0
        checkpoint = self._checkpoints.find(config.resume_from_checkpoint)
        if checkpoint is not None:
            self.step = read_progress(checkpoint, self.accelerator.num_processes).step
        if not same_everywhere(self.step, self.accelerator):
            raise TrainingError(
                f"this process would go on after step {self.step}, another one elsewhere",
                "put output_dir on storage that all nodes share, or pass --resume-from-checkpoint none",
            )
        if checkpoint is not None:
            self._resume(checkpoint)
        self.report = Report(self.accelerator, self.folder, self.step, config.max_train_steps)
        self._greet(sources[0].video == SAMPLE, checkpoint)

    def run(self) -> int:
        """Train to the end, or until a signal. Returns 0, or the signal's number."""
        try:
            return self._run()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _run(self) -> int:
        config = self.config
        batches = on_device(load_batches(self._dataset, self._stream(), config), self.accelerator.device)
        if self.step == 0:
            self._validate()
        signal_number = 0
        tally = Tally(self.accelerator.device)
        while self.step < config.max_train_steps and not signal_number:
            rate = learning_rate_at(self.step, config)
            self._train_step(batches, rate, tally)
            self.averaged.update(self._model, self.step)
            self.step += 1
            self.report.advance()
            if self.step == 1 or self.step % config.log_every == 0:
                self.report.step(self.step, tally.read(), rate)
            signal_number = self._stop.agreed()
            last = self.step == config.max_train_steps
            with tally.pausing():
                if not last and not signal_number and self.step % config.validate_every == 0:
                    self._validate()
                if last or signal_number or self.step % config.checkpoint_every == 0:
                    self._save()
        if not signal_number:
            self._finish(tally.data_wait_share())
        self.report.close()
        self.accelerator.end_training()
        return signal_number

    def _train_step(self, batches: Iterator[Clip], learning_rate: float, tally: Tally) -> None:
        """Take one optimizer step. Nothing in here waits for the GPU."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        limit, norm = self.config.gradient_clipping, None
        for _ in range(self.config.gradient_accumulation_steps):
            with tally.waiting():
                batch = next(batches)
            self._note_skipped(batch)
            with self.accelerator.accumulate(self._objective):
                losses = self._objective(batch.frames, self._target_latents(batch), batch.lacks_past)
                self.accelerator.backward(losses["loss"])
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self._objective.parameters(), limit)
                self._optimizer.step()
                self._optimizer.zero_grad()
            tally.forward_pass(losses)
        tally.step(norm, limit)
        self._reads_seen += (
            self.config.batch_size // self.config.clips_per_read * self.config.gradient_accumulation_steps
        ) * self.accelerator.num_processes

    def _target_latents(self, batch: Clip) -> Tensor | None:
        device = self.accelerator.device
        if self._teacher is None:
            return None if batch.latents is None else batch.latents.to(device, non_blocking=True)
        with torch.no_grad():
            return self._teacher.encode(scaled(batch.frames.to(device), self._teacher.dtype))

    def _validate(self) -> dict[str, float]:
        values = self._validation.measure(self.averaged.model)
        self.report.validation(self.step, values)
        return values

    def _finish(self, data_wait_share: float) -> None:
        values = self._validate()
        skipped = set(gather_object(list(self._skipped)))
        if not self.accelerator.is_main_process:
            return
        if skipped:
            self.report.info(f"{len(skipped)} videos could not be used: see the warnings above", "WARN")
        file = self.folder / "reconstruction.png"
        self._validation.draw(file, self.averaged.model, self.report.curve, values["mean_colour_psnr"])
        self.report.info(f"Waited for data: {data_wait_share:.0%} of the training's time")
        self.report.info(f"PSNR on unseen frames: {values['psnr']:.2f} dB", "SUCCESS")
        self.report.info(f"Checkpoint: {self._checkpoints.find('latest')}")
        self.report.info(f"Metrics: {self.report.metrics_file}")
        self.report.info(f"Picture: {file}")

    def _save(self) -> None:
        progress = Progress(self.step, self._reads_seen, self.accelerator.num_processes)
        path = self._checkpoints.save(progress, self._write_state)
        self.report.info(f"Checkpoint written: {path}")

    def _write_state(self, folder: Path) -> None:
        from safetensors.torch import save_file

        self.accelerator.save_state(str(folder))
        if self._finishes:
            save_file(self.averaged.model.state_dict(), folder / "ema.safetensors")

    def _resume(self, checkpoint: Path) -> None:
        progress = read_progress(checkpoint, self.accelerator.num_processes)
        self.accelerator.load_state(str(checkpoint))
        load_weights(self.averaged.model, checkpoint / "ema.safetensors")
        self._reads_seen = progress.reads_seen

    def _prepare(self, model: TAEHV) -> None:
        config = self.config
        self.averaged = AveragedWeights(model, config.ema_decay)
        self.averaged.model.to(self.accelerator.device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
            fused=self.accelerator.device.type == "cuda",
        )
        objective = Objective(model, config)
        if config.compile:
            objective.compile()  # in place: names in checkpoints stay as they are
        self._objective, self._optimizer = self.accelerator.prepare(objective, optimizer)
        unwrapped: Any = self.accelerator.unwrap_model(self._objective)
        self._model: TAEHV = unwrapped.model

    def _open_checkpoints(self) -> Checkpoints:
        shared = every_node_sees(self.folder, self.accelerator)
        self._finishes = (
            self.accelerator.is_main_process if shared else self.accelerator.is_local_main_process
        )
        plugin = self.accelerator.state.deepspeed_plugin
        if not shared and plugin is not None:
            plugin.deepspeed_config["checkpoint"] = {"use_node_local_storage": True}
        if not shared and self.accelerator.is_main_process:
            say(
                "WARN",
                f"nodes do not share output_dir {self.folder}: each keeps its own part of a checkpoint, "
                "and only the same nodes can resume from it",
            )
        return Checkpoints(
            self.folder / "checkpoints",
            self.config.checkpoints_total_limit,
            finishes=self._finishes,
            wait=self.accelerator.wait_for_everyone,
        )

    def _stream(self) -> ClipStream:
        return ClipStream(
            len(self._dataset),
            self.config.batch_size // self.config.clips_per_read,
            self.config.seed,
            process=self.accelerator.process_index,
            n_processes=self.accelerator.num_processes,
            reads_seen=self._reads_seen,
        )

    def _note_skipped(self, clip: Clip) -> None:
        """Say it once for each video, whichever process met it."""
        for path, reason in clip.skipped.items():
            if path not in self._skipped:
                self._skipped[path] = reason
                rank = self.accelerator.process_index
                say("WARN", f"rank {rank} skipped video {len(self._skipped)}: {path} {reason}")

    def _greet(self, on_sample: bool, checkpoint: Path | None) -> None:
        n_parameters = sum(p.numel() for p in self.averaged.model.parameters())
        n_processes = dist.get_world_size() if dist.is_initialized() else 1
        self.report.info(f"Initialized process group with {n_processes} processes")
        self.report.info(f"World size: {n_processes}, Rank: 0-{n_processes - 1}")
        self.report.info(f"TAEHV {self.config.model}: {n_parameters / 1e6:.2f} M parameters")
        if on_sample:
            self.report.info("training on the shipped 7-second sample: set data_root for your own", "WARN")
        if self.config.encoder_loss_weight:
            self.report.info(f"distilling: the decoder learns from the {self.config.decoder_input}'s latents")
        if checkpoint is not None:
            self.report.info(f"Resumed from {checkpoint}: step {self.step}")
        if self.step >= self.config.max_train_steps:
            self.report.info("all steps are taken already: raise max_train_steps to go on", "WARN")


def _load_teacher(config: TrainConfig, accelerator: Accelerator) -> TAEHV | None:
    """Return the frozen model whose latents are the target, or None where the config names none."""
    if config.teacher_checkpoint is None:
        return None
    teacher = load_model(Path(config.teacher_checkpoint))
    theirs, ours = teacher.architecture, config.architecture
    for name in ("latent_channels", "space_factor", "time_factor"):
        if getattr(theirs, name) != getattr(ours, name):
            raise TrainingError(
                f"teacher_checkpoint {config.teacher_checkpoint} has {name} {getattr(theirs, name)}, "
                f"the model to train {getattr(ours, name)}: their latents are not alike",
                "check model and latent_channels",
            )
    dtype = torch.bfloat16 if config.mixed_precision == "bf16" else torch.float32
    return teacher.to(accelerator.device, dtype).eval().requires_grad_(False)
