"""Prints the five stages of a launch."""

from __future__ import annotations

import platform as interpreter
import shlex
import sys
from collections.abc import Sequence

from platform_launch import __version__
from platform_launch.confidential import masked, masked_arguments
from platform_launch.console import Console
from platform_launch.doctor.finding import Finding, Level, refuse
from platform_launch.events import Event, event
from platform_launch.hardware import packages
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.render import hardware_rows
from platform_launch.plan.request import Form
from platform_launch.platforms import title_of
from platform_launch.text import Phrase, counted, joined

_PACKAGES = ("torch", "accelerate", "deepspeed", "transformers", "jax", "nvidia-ml-py")


def announce(plan: LaunchPlan, console: Console, findings: Sequence[Finding]) -> None:
    """Print, stage by stage, what was found and what will run.

    Raises the LaunchError for the first error among the findings.
    """
    _open(plan, console)
    _environment(plan, console)
    _communication(plan, console)
    _verification(plan, console, findings)
    _configuration(plan, console)
    known = {(finding.id, finding.where) for finding in findings}
    for warning in plan.warnings:
        if (warning.id, warning.origin) not in known:
            console.report(Event(warning.id, "WARN", warning.origin, {"what": warning.text}))
    console.stage(5, "Launch")
    topology = plan.topology
    if topology.nnodes == 1:
        processes = counted(topology.world_size or 1, "process")
        console.info(Phrase("single node: starting {processes}", processes=processes))
    elif topology.is_spare:
        console.info(Phrase("this is a spare node; {nodes} nodes run the job", nodes=topology.nnodes))
    elif topology.is_master:
        console.info(Phrase("this is the master node (rank 0 of {nodes})", nodes=topology.nnodes))
    else:
        console.info(
            Phrase(
                "this is worker node {rank} of {nodes}: joining {address}",
                rank=topology.node_rank,
                nodes=topology.nnodes,
                address=f"{topology.master_addr}:{topology.master_port}",
            )
        )


def _open(plan: LaunchPlan, console: Console) -> None:
    topology = plan.topology
    rows = {name: value for name, value, _ in hardware_rows(plan)}
    form, program = _program_row(plan)
    console.banner(
        f"platform_launch {__version__}",
        [
            ("job", plan.job_name),
            (
                "node",
                Phrase(
                    "{rank} of {nodes}, on {host}",
                    rank=topology.node_rank,
                    nodes=topology.nnodes,
                    host=plan.hardware.host.hostname,
                ),
            ),
            ("platform", Phrase(topology.platform)),
            ("GPUs", rows["GPUs"]),
            ("network", rows.get("RDMA") or rows.get("network", "")),
            (form, _with_note(program, plan.training.program.reason)),
            ("config", str(plan.training.config or "")),
        ],
    )
    console.report(
        event(
            "launch-opened",
            version=__version__,
            job=plan.job_name,
            platform=topology.platform,
            node_rank=topology.node_rank,
            nnodes=topology.nnodes,
            nproc_per_node=topology.nproc_per_node,
            master=f"{topology.master_addr}:{topology.master_port}",
            host=plan.hardware.host.hostname,
            gpus=rows["GPUs"],
            launcher=plan.launcher,
            program=program,
        )
    )


def _environment(plan: LaunchPlan, console: Console) -> None:
    topology, source = plan.topology, plan.topology.sources
    console.stage(1, "Environment")
    title = title_of(topology.platform)
    notes = [topology.platform if topology.platform != title else "", source.get("platform", "")]
    console.info(
        _with_note(Phrase("platform: {title}", title=Phrase(title)), joined(filter(None, notes), "; "))
    )
    console.info(Phrase("nodes: {nodes} ({source})", nodes=topology.nnodes, source=source.get("nnodes", "")))
    console.info(
        Phrase(
            "this node: rank {rank} ({source})", rank=topology.node_rank, source=source.get("node_rank", "")
        )
    )
    address = f"{topology.master_addr}:{topology.master_port}"
    console.info(
        Phrase("master: {address} ({source})", address=address, source=source.get("master_addr", ""))
    )
    for name, value, note in hardware_rows(plan):
        console.info(_with_note(Phrase("{name}: {value}", name=Phrase(name), value=value), note))
    console.info(
        Phrase(
            "processes: {processes} per node ({source}), {all} in all",
            processes=topology.nproc_per_node,
            source=source.get("nproc_per_node", ""),
            all=topology.world_size,
        )
    )


def _program_row(plan: LaunchPlan) -> tuple[str, str]:
    """Return the form of the program (script, module or command), and its name."""
    program = plan.training.program
    form = Form.SCRIPT if program.form is Form.EXAMPLE else program.form
    if program.form is Form.COMMAND:
        return form.value, shlex.join([program.target, *masked_arguments(program.arguments)])
    return form.value, program.target


def _with_note(fact: str, note: str) -> str:
    return Phrase("{fact} ({note})", fact=fact, note=note) if note else fact


def _communication(plan: LaunchPlan, console: Console) -> None:
    console.stage(2, Phrase("Communication and process variables"))
    for variable in plan.env:
        console.info(_setting(variable.name, variable.value, variable.reason))
    for variable in plan.kept:
        console.info(_setting(variable.name, masked(variable.name, variable.value), variable.reason))
    if plan.removed:
        names = joined(removal.name for removal in plan.removed)
        console.info(Phrase("removed from the job's environment: {names}", names=names))


def _setting(name: str, value: str, reason: str) -> Phrase:
    return Phrase("{name}={value}  # {reason}", name=name, value=value, reason=Phrase.of(reason))


def _verification(plan: LaunchPlan, console: Console, findings: Sequence[Finding]) -> None:
    console.stage(3, "Verification")
    known = versions()
    version = f"{interpreter.python_implementation()} {known.pop('python')}"
    console.info(Phrase("interpreter: {path} ({version})", path=plan.python, version=version))
    console.info(joined(f"{name} {number}" for name, number in known.items()))
    first_error = next((finding for finding in findings if finding.level is Level.ERROR), None)
    for finding in findings:
        if finding is not first_error:  # it is printed last
            console.report(finding.as_event())
    refuse(findings)


def _configuration(plan: LaunchPlan, console: Console) -> None:
    training = plan.training
    form, program = _program_row(plan)
    console.stage(4, "Configuration")
    console.info(Phrase("launcher: {launcher}", launcher=plan.launcher))
    console.info(Phrase("chosen by: {rule}", rule=training.rule))
    console.info(
        _with_note(Phrase("{form}: {program}", form=Phrase(form), program=program), training.program.reason)
    )
    if training.config is not None:
        console.info(Phrase("config: {config}", config=training.config))
    if training.accelerate_yaml is not None:
        console.info(Phrase("accelerate yaml: {path}", path=training.accelerate_yaml.path))
    if training.global_batch is not None:
        rate = training.learning_rate
        console.info(
            Phrase("global batch: {batch}, learning rate: {rate}", batch=training.global_batch, rate=rate)
        )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the main training packages, without importing them."""
    own = {"platform-launch": __version__, "python": sys.version.split()[0]}
    return {**own, **packages.versions(_PACKAGES)}
