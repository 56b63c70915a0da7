"""The five stages of a launch, said in words."""

from __future__ import annotations

import platform as interpreter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.cli.voice import Voice
from platform_launch.doctor.finding import Finding, Level, refuse
from platform_launch.plan import LaunchPlan
from platform_launch.record import versions
from platform_launch.render import hardware_rows

if TYPE_CHECKING:
    from platform_launch.supervise import Outcome


def announce(plan: LaunchPlan, voice: Voice, findings: Sequence[Finding]) -> None:
    """Say, stage by stage, what was found and what will run; from here on, in the log too.

    Raises the LaunchError that stands for the first error among the findings.
    """
    kept = voice.keep(plan.log_path)
    voice.title("platform_launch: multi-node training")
    _environment(plan, voice)
    _communication(plan, voice)
    _verification(plan, voice, findings)
    _configuration(plan, voice)
    if kept:
        voice.info(f"log: {plan.log_path}")
    for warning in plan.warnings:
        voice.warn(warning)
    voice.stage(5, "Launch")
    topology = plan.topology
    if topology.nnodes == 1:
        voice.info(f"single node: starting {topology.world_size} process(es)")
    elif topology.is_master:
        voice.info(f"this is the master node (rank 0 of {topology.nnodes})")
    else:
        voice.info(
            f"this is worker node {topology.node_rank} of {topology.nnodes}: "
            f"joining {topology.master_addr}:{topology.master_port}"
        )


def _environment(plan: LaunchPlan, voice: Voice) -> None:
    topology, source = plan.topology, plan.topology.sources
    voice.stage(1, "Environment")
    voice.info(f"platform: {topology.platform} ({source.get('platform', 'no platform')})")
    voice.info(f"nodes: {topology.nnodes} ({source.get('nnodes', '')})")
    voice.info(f"this node: rank {topology.node_rank} ({source.get('node_rank', '')})")
    voice.info(f"master: {topology.master_addr}:{topology.master_port} ({source.get('master_addr', '')})")
    for name, value, note in hardware_rows(plan.hardware):
        voice.info(f"{name}: {value}" + (f" ({note})" if note else ""))
    voice.info(
        f"processes: {topology.nproc_per_node} per node ({source.get('nproc_per_node', '')}), "
        f"{topology.world_size} in all"
    )


def _communication(plan: LaunchPlan, voice: Voice) -> None:
    voice.stage(2, "Communication and process variables")
    for variable in plan.env:
        voice.info(f"{variable.name}={variable.value}  # {variable.reason}")
    if plan.removed:
        names = ", ".join(removal.name for removal in plan.removed)
        voice.info(f"removed from the training's environment: {names}")


def _verification(plan: LaunchPlan, voice: Voice, findings: Sequence[Finding]) -> None:
    voice.stage(3, "Verification")
    known = versions()
    voice.info(f"interpreter: {plan.argv[0]} ({interpreter.python_implementation()} {known.pop('python')})")
    voice.info(", ".join(f"{name} {number}" for name, number in known.items()))
    first_error = next((finding for finding in findings if finding.level is Level.ERROR), None)
    for finding in findings:
        if finding is not first_error:  # that one is the launch's last word
            say = voice.error if finding.level is Level.ERROR else voice.warn
            say(f"{finding.what} [{finding.id}]" + (f"; {finding.hint}" if finding.hint else ""))
    refuse(findings)


def _configuration(plan: LaunchPlan, voice: Voice) -> None:
    training = plan.training
    voice.stage(4, "Configuration")
    voice.info(f"launcher: {plan.launcher}")
    voice.info(f"rule: {training.rule}")
    voice.info(f"script: {training.script}")
    if training.config is not None:
        voice.info(f"config: {training.config}")
    if training.accelerate_yaml is not None:
        voice.info(f"accelerate yaml: {training.accelerate_yaml.path}")
    if training.global_batch is not None:
        voice.info(f"global batch: {training.global_batch}, learning rate: {training.learning_rate}")


def conclude(outcome: Outcome, record: Path | None, voice: Voice) -> None:
    """Say how the training ended and where to look."""
    took = _duration(outcome.duration_s)
    if outcome.exit_code == 0:
        voice.success(f"training finished after {took}")
    elif outcome.stopped_by is not None:
        # torchrun answers a signal with a traceback, which looks like a failure and is none.
        voice.warn(
            f"training was stopped after {took} ({outcome.stopped_by}; exit code {outcome.exit_code}); "
            "tracebacks of SignalException above only say so"
        )
    elif outcome.signal is not None:
        voice.error(
            f"training was ended by {outcome.signal.name} after {took} (exit code {outcome.exit_code})"
        )
    else:
        voice.error(f"training ended with exit code {outcome.exit_code} after {took}")
    if outcome.log_path is not None:
        voice.info(f"log: {outcome.log_path}")
    if record is not None:
        voice.info(f"launch record: {record}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
