"""The five stages of a launch, said in words."""

from __future__ import annotations

import platform as interpreter
from collections.abc import Sequence

from platform_launch import __version__
from platform_launch.confidential import masked
from platform_launch.console import Console
from platform_launch.doctor.finding import Finding, Level, refuse
from platform_launch.events import Event, event
from platform_launch.launch.record import versions
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.render import hardware_rows
from platform_launch.platforms import title_of


def announce(plan: LaunchPlan, console: Console, findings: Sequence[Finding]) -> None:
    """Say, stage by stage, what was found and what will run.

    Raises the LaunchError that stands for the first error among the findings.
    """
    _open(plan, console)
    _environment(plan, console)
    _communication(plan, console)
    _verification(plan, console, findings)
    _configuration(plan, console)
    known = {(finding.id, finding.where) for finding in findings}
    for warning in plan.warnings:
        if (warning.id, warning.origin) not in known:
            console.tell(Event(warning.id, "WARN", warning.origin, {"what": warning.text}))
    console.stage(5, "Launch")
    topology = plan.topology
    if topology.nnodes == 1:
        one = topology.world_size == 1
        console.info(f"single node: starting {topology.world_size} process{'' if one else 'es'}")
    elif topology.is_spare:
        console.info(f"this is a spare beside the {topology.nnodes} nodes that train")
    elif topology.is_master:
        console.info(f"this is the master node (rank 0 of {topology.nnodes})")
    else:
        console.info(
            f"this is worker node {topology.node_rank} of {topology.nnodes}: "
            f"joining {topology.master_addr}:{topology.master_port}"
        )


def _open(plan: LaunchPlan, console: Console) -> None:
    topology = plan.topology
    rows = {name: value for name, value, _ in hardware_rows(plan.hardware)}
    console.banner(
        f"platform_launch {__version__}",
        [
            ("job", plan.job_name),
            ("node", f"{topology.node_rank} of {topology.nnodes}, on {plan.hardware.host.hostname}"),
            ("platform", topology.platform),
            ("GPUs", rows["GPUs"]),
            ("network", rows.get("RDMA") or rows.get("network", "")),
            ("script", _noted(str(plan.training.script), plan.training.script_rule)),
            ("config", str(plan.training.config or "")),
        ],
    )
    console.tell(
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
        )
    )


def _environment(plan: LaunchPlan, console: Console) -> None:
    topology, source = plan.topology, plan.topology.sources
    console.stage(1, "Environment")
    title = title_of(topology.platform)
    notes = [topology.platform if topology.platform != title else "", source.get("platform", "")]
    console.info(_noted(f"platform: {title}", "; ".join(filter(None, notes))))
    console.info(f"nodes: {topology.nnodes} ({source.get('nnodes', '')})")
    console.info(f"this node: rank {topology.node_rank} ({source.get('node_rank', '')})")
    console.info(f"master: {topology.master_addr}:{topology.master_port} ({source.get('master_addr', '')})")
    for name, value, note in hardware_rows(plan.hardware):
        console.info(_noted(f"{name}: {value}", note))
    console.info(
        f"processes: {topology.nproc_per_node} per node ({source.get('nproc_per_node', '')}), "
        f"{topology.world_size} in all"
    )


def _noted(fact: str, note: str) -> str:
    return f"{fact} ({note})" if note else fact


def _communication(plan: LaunchPlan, console: Console) -> None:
    console.stage(2, "Communication and process variables")
    for variable in plan.env:
        console.info(f"{variable.name}={variable.value}  # {variable.reason}")
    for variable in plan.kept:
        console.info(f"{variable.name}={masked(variable.name, variable.value)}  # {variable.reason}")
    if plan.removed:
        names = ", ".join(removal.name for removal in plan.removed)
        console.info(f"removed from the training's environment: {names}")


def _verification(plan: LaunchPlan, console: Console, findings: Sequence[Finding]) -> None:
    console.stage(3, "Verification")
    known = versions()
    console.info(f"interpreter: {plan.argv[0]} ({interpreter.python_implementation()} {known.pop('python')})")
    console.info(", ".join(f"{name} {number}" for name, number in known.items()))
    first_error = next((finding for finding in findings if finding.level is Level.ERROR), None)
    for finding in findings:
        if finding is not first_error:  # that one is the launch's last word
            console.tell(finding.as_event())
    refuse(findings)


def _configuration(plan: LaunchPlan, console: Console) -> None:
    training = plan.training
    console.stage(4, "Configuration")
    console.info(f"launcher: {plan.launcher}")
    console.info(f"chosen by: {training.rule}")
    console.info(_noted(f"script: {training.script}", training.script_rule))
    if training.config is not None:
        console.info(f"config: {training.config}")
    if training.accelerate_yaml is not None:
        console.info(f"accelerate yaml: {training.accelerate_yaml.path}")
    if training.global_batch is not None:
        console.info(f"global batch: {training.global_batch}, learning rate: {training.learning_rate}")
