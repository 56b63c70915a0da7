"""``platform-launch doctor``: what would go wrong with a launch, on this node or between all of them."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from platform_launch import hardware
from platform_launch.cli import launch_options
from platform_launch.cli.run import ScriptArguments
from platform_launch.doctor import Finding, Level, examine, worst
from platform_launch.doctor.checks.planned import plan_warnings
from platform_launch.doctor.finding import of_refusal
from platform_launch.doctor.gather import gather
from platform_launch.doctor.quick import NAMES
from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, LaunchError, TopologyError, UsageError
from platform_launch.hardware import Hardware
from platform_launch.plan import LaunchPlan, build_plan
from platform_launch.platforms import detect
from platform_launch.settings.request import Request
from platform_launch.topology import Overrides

_ALONE = Overrides(nnodes=1, node_rank=0, master_addr="127.0.0.1", nproc_per_node=1)
_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.INFO: "cyan"}


@click.command("doctor", cls=ScriptArguments)
@launch_options.launch_options
@click.option("--quick", is_flag=True, help="Only what a launch checks by itself: no torch, no other node.")
@click.option("--local", is_flag=True, help="Leave the other nodes of the job out.")
@click.option("--jax", "with_jax", is_flag=True, help="Try JAX, alone and between the nodes, not torch.")
@click.option(
    "--timeout",
    "meet_limit_s",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long nodes wait for each other.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(quick: bool, local: bool, with_jax: bool, meet_limit_s: float, form: str, **flags: Any) -> int:
    """Say what would go wrong with a launch. Takes the options of `run`, and starts nothing.

    As the container command of a job of several nodes it is started on all of them: they try to reach each
    other, and run a real collective in pairs, so that the slow or broken node is named.

    Exit code: 0 nothing found, 1 warnings, 2 errors. The ids are in docs/reference/findings.md.
    """
    env = Environment.of_this_process()
    plan, findings = _planned(env, launch_options.request(flags))
    facts = gather(env, plan)
    findings += [*plan_warnings(facts), *examine(facts)]
    checked = ["launch plan", *NAMES]
    with_jax = with_jax or plan.launcher == "jax"
    if not quick:
        tried = ["jax"] if with_jax else [name for name in ("torch", "deepspeed") if name in plan.packages]
        checked += [f"in a process of its own: {name}" for name in tried]
        findings += _deep(plan, env, with_jax)
    if plan.topology.nnodes > 1 and not (quick or local):
        from platform_launch.cli.doctor_cluster import meet

        checked.append(f"between {plan.topology.nnodes} nodes: network, collectives")
        findings += meet(plan, env, with_jax=with_jax, meet_limit_s=meet_limit_s)
    findings.sort(key=lambda finding: -finding.level)
    if form == "json":
        click.echo(_json(plan, env, findings, checked))
    else:
        _print(findings, checked)
    return int(worst(findings))


def _planned(env: Environment, request: Request) -> tuple[LaunchPlan, list[Finding]]:
    """Plan the launch. What is refused becomes a finding, and the rest is planned without it."""
    found: list[Finding] = []
    machine = _machine(env, request, found)
    while True:
        try:
            return build_plan(env, machine, request), found
        except LaunchError as refusal:
            simpler = _without(refusal, request)
            if simpler == request:
                raise
            found.append(of_refusal(refusal))
            request = simpler


def _machine(env: Environment, request: Request, found: list[Finding]) -> Hardware:
    master = None
    with suppress(TopologyError):  # the plan will say it
        master = detect(env, request.overrides).master_addr
    try:
        return hardware.detect(env, master_addr=master)
    except (HardwareError, UsageError) as refusal:  # the driver, or CUDA_VISIBLE_DEVICES
        found.append(of_refusal(refusal))
        return hardware.detect(env, master_addr=master, assume="cpu")


def _without(refusal: LaunchError, request: Request) -> Request:
    """Return the request without the part that was refused: the place in the job, or what is trained."""
    if isinstance(refusal, TopologyError):
        return dataclasses.replace(request, overrides=_ALONE)
    return Request(
        root=request.root,
        python=request.python,
        temporary=request.temporary,
        started=request.started,
        default_log_dir=request.default_log_dir,
        overrides=request.overrides,
        log_dir=request.log_dir,
    )


def _deep(plan: LaunchPlan, env: Environment, with_jax: bool) -> list[Finding]:
    from platform_launch.doctor import deep

    variables = plan.child_environment(env.inherited())
    if with_jax:
        return deep.try_jax(plan, variables)
    findings = deep.try_torch(plan, variables) if "torch" in plan.packages else []
    broken = any(finding.level is Level.ERROR for finding in findings)
    return findings if broken or "deepspeed" not in plan.packages else [*findings, *_ops(plan, variables)]


def _ops(plan: LaunchPlan, variables: dict[str, str]) -> list[Finding]:
    """Ask DeepSpeed for its ops, as `wheel check` does."""
    from platform_launch.doctor import deep
    from platform_launch.errors import InstallationError
    from platform_launch.wheels.report import ask_node, warnings

    try:
        node = ask_node(
            plan.argv[0], variables, hostname=plan.hardware.host.hostname, gpus=(), timeout_s=deep.LIMIT_S
        )
    except InstallationError as error:
        return [deep.broken_deepspeed(error.message, error.hint)]
    usable = "broken" not in node.ops.values() and not node.missing_requirements
    return deep.of_deepspeed(warnings(node), f"deepspeed {node.deepspeed}", usable=usable)


def _json(plan: LaunchPlan, env: Environment, findings: Sequence[Finding], checked: Sequence[str]) -> str:
    document = {
        "node_rank": plan.topology.node_rank,
        "host": env.hostname,
        "level": worst(findings).name.lower(),
        "checked": list(checked),
        "findings": [finding.as_dict() for finding in findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _print(findings: Sequence[Finding], checked: Sequence[str]) -> None:
    for finding in findings:
        level = click.style(f"{finding.level.name:<7}", fg=_COLOURS[finding.level])
        click.echo(f"{level}  {finding.id}: {' '.join(finding.what.splitlines())}")
        if finding.hint:
            click.echo(f"{'':7}  hint: {' '.join(finding.hint.splitlines())}")
    click.echo(_summary(checked))
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    click.echo(f"{counts[Level.ERROR]} error(s), {counts[Level.WARNING]} warning(s)")


def _summary(checked: Sequence[str]) -> str:
    """Say what was looked at, by topic."""
    topics: dict[str, list[str]] = {}
    for topic, _, what in (name.partition(": ") for name in checked):
        topics.setdefault(topic, []).append(what)
    said = "; ".join(
        topic + (f": {', '.join(whats)}" if any(whats) else "") for topic, whats in topics.items()
    )
    return textwrap.fill(f"{len(checked)} checks: {said}", 100, subsequent_indent="  ")
