"""The training loop: from a checked config to checkpoints, metrics and a picture."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file
from torch import Tensor

from taehv_trainer import training_state
from taehv_trainer.adversary import Adversary
from taehv_trainer.checkpoints import Checkpoints, Progress, read_progress
from taehv_trainer.clips import Clip, ClipDataset, ClipStream, load_batches
from taehv_trainer.config import TrainConfig
from taehv_trainer.errors import TrainingError
from taehv_trainer.model import TAEHV
from taehv_trainer.nonfinite import skip_nonfinite_steps, where_it_began
from taehv_trainer.objective import Objective, scaled
from taehv_trainer.prefetch import on_device
from taehv_trainer.report import Report, log_line
from taehv_trainer.resuming import changes, choose_checkpoint
from taehv_trainer.schedule import learning_rate_at
from taehv_trainer.session import every_node_sees, lock_output, raise_together, start_session, start_tracker
from taehv_trainer.sources import SAMPLE, find_sources
from taehv_trainer.stopping import StepOutcome
from taehv_trainer.tally import Tally
from taehv_trainer.validation import Validation
from taehv_trainer.weights import AveragedWeights, load_model, load_weights

_WEIGHTS, _STATE, _ADVERSARY = "ema.safetensors", "training.safetensors", "adversary.safetensors"
_PROFILED_STEPS = 3
_FP16_SEARCH_STEPS = 20  # a loss scale that starts at 2**16 is below 1 after so many overflows


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
        self._outcome = StepOutcome(self.accelerator.device)
        self._teacher = _load_teacher(config, self.accelerator)
        if config.init_from is not None:
            load_weights(model, Path(config.init_from))
        elif config.encoder_loss_weight and config.decoder_input == "teacher":
            model.start_latents_at_zero()
        self._adversary = Adversary(self.accelerator.device) if config.adversarial_loss_weight else None
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
        self._writes = self._one_per_disk()
        self._lock = lock_output(self.folder, acquires=self._writes)
        self._checkpoints = Checkpoints(self.folder / "checkpoints", config.checkpoints_total_limit)
        checkpoint = choose_checkpoint(self._checkpoints, config.resume_from_checkpoint, self.accelerator)
        progress = self._new_run() if checkpoint is None else read_progress(checkpoint)
        self.step, self._samples_seen, self._run_id = progress.step, progress.samples_seen, progress.run_id
        self._prepare(model)
        if checkpoint is not None:
            self._resume(checkpoint)
        if self._writes:
            text = json.dumps(asdict(config), indent=1)
            (self.folder / "config.json").write_text(text + "\n", encoding="utf-8")
        start_tracker(self.accelerator, config, self._run_id, self.step)
        self._clips_per_step = (
            config.batch_size * config.gradient_accumulation_steps * self.accelerator.num_processes
        )
        self.report = Report(
            self.accelerator, self.folder, self.step, config.max_train_steps, self._clips_per_step
        )
        self._skipped_steps = self._skipped_in_a_row = 0
        self._batches: list[list[Clip]] = [[], []]  # of the step before and of this one
        self._greet(sources[0].video == SAMPLE, checkpoint, progress)

    def run(self) -> int:
        """Train to the end, or until a signal. Returns 0, or the signal's number."""
        try:
            with self._profiler() as profiler:
                return self._run(profiler)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _run(self, profiler: Any) -> int:
        config = self.config
        batches = on_device(load_batches(self._dataset, self._stream(), config), self.accelerator.device)
        if self.step == 0:
            self._validate()
        signal_number = 0
        tally = Tally(self.accelerator.device)
        while self.step < config.max_train_steps and not signal_number:
            rate = learning_rate_at(self.step, config)
            norm = self._train_step(batches, rate, tally)
            self.averaged.update(self._model, self.step)
            self.step += 1
            self.report.advance()
            if profiler is not None:
                profiler.step()
            if self.step == 1 or self.step % config.log_every == 0:
                self.report.step(self.step, tally.read(), rate)
            last = self.step == config.max_train_steps
            agreed = self._outcome.after_step(norm)
            self._note_gradient(self.step - 1, agreed.not_finite)
            if last:
                self._note_gradient(self.step, self._outcome.last_step().not_finite)
            signal_number = agreed.signal
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

    def _train_step(
        self, batches: Iterator[Clip], learning_rate: float, tally: Tally
    ) -> Tensor | float | None:
        """Take one optimizer step; return its gradient's norm. Nothing in here waits for the GPU."""
        of_adversary = self._adversary.optimizer.param_groups if self._adversary is not None else []
        for group in [*self._optimizer.param_groups, *of_adversary]:
            group["lr"] = learning_rate
        limit, norm = self.config.gradient_clipping, None
        self._batches = [self._batches[1], []]
        for _ in range(self.config.gradient_accumulation_steps):
            with tally.waiting():
                batch = next(batches)
            self._note_skipped(batch)
            self._batches[1].append(batch)
            with self.accelerator.accumulate(self._objective):
                losses = self._objective(batch.frames, self._target_latents(batch), batch.lacks_past)
                self.accelerator.backward(losses["loss"])
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self._objective.parameters(), limit)
                self._optimizer.step()
                self._optimizer.zero_grad()
            tally.forward_pass(losses)
        tally.step(norm, limit)
        self._samples_seen += self._clips_per_step
        return norm

    def _note_gradient(self, step: int, not_finite: bool) -> None:
        """Count a step that was skipped for its gradient; stop if that happened too often in a row."""
        if not not_finite:
            self._skipped_in_a_row = 0
            return
        self._skipped_steps += 1
        self._skipped_in_a_row += 1
        allowed = self.config.max_nonfinite_steps
        if self.config.mixed_precision == "fp16":
            allowed = max(allowed, _FP16_SEARCH_STEPS)
        if self._skipped_in_a_row <= allowed:
            self.report.info(
                f"step {step} skipped: its gradient is not finite ({self._skipped_steps} skipped so far)",
                "WARN",
            )
            return
        in_a_row = f", and those of {allowed} steps before" if allowed else ""
        raise TrainingError(
            f"the gradient of step {step} is not finite{in_a_row}{self._origin()}; the learning rate was "
            f"{learning_rate_at(step - 1, self.config):.3g}",
            f"no such step was applied, and {self._last_checkpoint()}: lower the learning rate, look at the "
            "data, or pass --max-nonfinite-steps to skip some",
            on_all_processes=True,
        )

    def _origin(self) -> str:
        """Return on which ranks the forward pass is not finite, and where it began on the first of them."""
        mine = ""
        for batch in [*self._batches[0], *self._batches[1]]:
            mine = mine or where_it_began(self._objective, batch, self._target_latents(batch))
        origins: list[str] = gather_object([mine])
        ranks = [rank for rank, origin in enumerate(origins) if origin]
        if not ranks:
            return "; a second forward pass is: it began in the backward pass"
        named = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
        return f"; it began with {origins[ranks[0]]} (rank {named})"

    def _last_checkpoint(self) -> str:
        names = self._checkpoints.names()
        return f"the last checkpoint is {names[0]}" if names else "there is no checkpoint yet"

    def _target_latents(self, batch: Clip) -> Tensor | None:
        device = self.accelerator.device
        if self._teacher is None:
            return None if batch.latents is None else batch.latents.to(device, non_blocking=True)
        with torch.no_grad():
            return self._teacher.encode(scaled(batch.frames.to(device), self._teacher.dtype))

    def _validate(self) -> dict[str, float]:
        values = self._validation.measure(self.averaged.model)
        self.report.validation(self.step, values)
        number = self.step // self.config.validate_every
        last = self.step == self.config.max_train_steps
        if self.accelerator.is_main_process and (last or number % self.config.picture_every == 0):
            image = self._validation.draw(self.averaged.model, self.report.curve, values["mean_colour_psnr"])
            image.save(self.folder / "reconstruction.png")
            self.report.picture(self.step, image)
        return values

    def _finish(self, data_wait_share: float) -> None:
        values = self._validate()
        skipped = set(gather_object(list(self._skipped)))
        if not self.accelerator.is_main_process:
            return
        if skipped:
            self.report.info(f"{len(skipped)} videos could not be used: see the warnings above", "WARN")
        if self._skipped_steps:
            self.report.info(f"{self._skipped_steps} steps were skipped: see the warnings above", "WARN")
        self.report.info(f"Waited for data: {data_wait_share:.0%} of the training's time")
        self.report.info(f"PSNR on unseen frames: {values['psnr']:.2f} dB", "SUCCESS")
        self.report.info(f"Checkpoint: {self._checkpoints.folder / self._checkpoints.names()[0]}")
        self.report.info(f"Metrics: {self.report.metrics_file}")
        self.report.info(f"Picture: {self.folder / 'reconstruction.png'}")

    def _save(self) -> None:
        state = training_state.collect(self._model, self._adamw, keep=self._writes)
        failure, path = None, self.folder
        if self._writes:
            progress = Progress(
                step=self.step,
                samples_seen=self._samples_seen,
                n_processes=self.accelerator.num_processes,
                run_id=self._run_id,
                config=asdict(self.config),
            )
            try:
                files = {_STATE: state, _WEIGHTS: self.averaged.model.state_dict()}
                if self._adversary is not None:
                    files[_ADVERSARY] = self._adversary.state()
                path = self._checkpoints.write(progress, files)
            except TrainingError as error:
                failure = error
        raise_together(failure)
        self.report.info(f"Checkpoint written: {path}")

    def _resume(self, checkpoint: Path) -> None:
        # DeepSpeed's optimizer is around ours; accelerate's is around that.
        zero = getattr(self._optimizer, "optimizer", None)
        training_state.restore(self._model, self._adamw, zero, load_file(checkpoint / _STATE))
        load_weights(self.averaged.model, checkpoint / _WEIGHTS)
        if self._adversary is not None and (checkpoint / _ADVERSARY).exists():
            self._adversary.restore(load_file(checkpoint / _ADVERSARY))

    def _new_run(self) -> Progress:
        (run_id,) = broadcast_object_list([uuid.uuid4().hex[:8]])
        return Progress(step=0, samples_seen=0, n_processes=self.accelerator.num_processes, run_id=run_id)

    def _prepare(self, model: TAEHV) -> None:
        config = self.config
        self.averaged = AveragedWeights(model, config.ema_decay)
        self.averaged.model.to(self.accelerator.device)
        self._adamw = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
            fused=True,
        )
        skip_nonfinite_steps(self._adamw)
        objective = Objective(model, config, self._adversary)
        if config.compile:
            objective.compile()  # in place: names in checkpoints stay as they are
        self._objective, self._optimizer = self.accelerator.prepare(objective, self._adamw)
        unwrapped: Any = self.accelerator.unwrap_model(self._objective)
        self._model: TAEHV = unwrapped.model

    def _one_per_disk(self) -> bool:
        """Return whether this process writes checkpoints: one does, or one per node if they share no disk."""
        shared = every_node_sees(self.folder, self.accelerator)
        if not shared and self.accelerator.is_main_process:
            log_line(
                "WARN", f"nodes do not share output_dir {self.folder}: each writes the checkpoints to its own"
            )
        return bool(self.accelerator.is_main_process if shared else self.accelerator.is_local_main_process)

    def _stream(self) -> ClipStream:
        return ClipStream(
            len(self._dataset),
            self.config.batch_size // self.config.clips_per_read,
            self.config.seed,
            process=self.accelerator.process_index,
            n_processes=self.accelerator.num_processes,
            reads_seen=self._samples_seen // self.config.clips_per_read,
        )

    def _profiler(self) -> AbstractContextManager[Any]:
        """Trace three steps of the main process, when the first ones are over."""
        if not (self.config.profile and self.accelerator.is_main_process):
            return nullcontext()
        file = self.folder / "profile" / "trace.json.gz"
        file.parent.mkdir(exist_ok=True)

        def write(profiler: torch.profiler.profile) -> None:
            profiler.export_chrome_trace(str(file))
            self.report.info(f"Profile: {file} (open it in https://ui.perfetto.dev)")

        return torch.profiler.profile(
            schedule=torch.profiler.schedule(
                skip_first=3, wait=1, warmup=1, active=_PROFILED_STEPS, repeat=1
            ),
            on_trace_ready=write,
        )

    def _note_skipped(self, clip: Clip) -> None:
        """Report each unreadable video once per rank."""
        for path, reason in clip.skipped.items():
            if path not in self._skipped:
                self._skipped[path] = reason
                rank = self.accelerator.process_index
                log_line("WARN", f"rank {rank} skipped video {len(self._skipped)}: {path} {reason}")

    def _greet(self, on_sample: bool, checkpoint: Path | None, progress: Progress) -> None:
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
            self.report.info(f"Resumed from {checkpoint}: step {self.step}, {self._samples_seen} clips seen")
            for line in changes(progress, self.config, n_processes):
                self.report.info(line, "WARN")
        if self.step >= self.config.max_train_steps:
            self.report.info("all steps are already done: raise max_train_steps to go on", "WARN")


def _load_teacher(config: TrainConfig, accelerator: Accelerator) -> TAEHV | None:
    """Return the frozen model whose latents are the target, or None if the config names none."""
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
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.mixed_precision, torch.float32)
    return teacher.to(accelerator.device, dtype).eval().requires_grad_(False)
