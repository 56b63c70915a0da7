"""All checks of the doctor for one launch: its plan, this node, child processes, the other nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from platform_launch import hardware
from platform_launch.console import Console
from platform_launch.doctor import deep
from platform_launch.doctor.checks.planned import plan_warnings, rank_order
from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, Level, of_refusal, worst
from platform_launch.doctor.gather import gather
from platform_launch.doctor.quick import examine_each
from platform_launch.environment import Environment
from platform_launch.errors import (
    HardwareError,
    InstallationError,
    LaunchError,
    TopologyError,
    UsageError,
)
from platform_launch.hardware import Gpus, Hardware
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.request import Request
from platform_launch.platforms import detect
from platform_launch.topology import Overrides, Topology, node_prefix
from platform_launch.wheels.report import query_node, warnings

_ALONE = Overrides(nnodes=1, node_rank=0, master_addr="127.0.0.1", nproc_per_node=1)

BETWEEN_NODES = ("between nodes: network", "between nodes: collectives")


@dataclass(frozen=True)
class Examination:
    """What was found, the worst first, and the names of what was ``checked``, as ``topic: what``.

    Of those, ``passed`` found neither an error nor a warning.
    """

    plan: LaunchPlan
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    passed: int


def examine_launch(
    env: Environment,
    request: Request,
    *,
    child_processes: bool,
    other_nodes: bool,
    jax: bool,
    ports_of: Callable[[Topology, Environment], tuple[int, ...]],
    join_limit_s: float,
) -> Examination:
    """Check the requested launch without starting anything of it.

    ``child_processes`` import torch, or JAX with ``jax``. ``other_nodes``: also check them; ``ports_of``
    returns node 0's ports, ``join_limit_s`` is how long to wait for them. Raises LaunchError only if nothing
    can be planned at all.
    """
    plan, refusals = _planned(env, request)
    facts = gather(env, plan)
    together = other_nodes and plan.topology.nnodes > 1
    planned = [*refusals, *plan_warnings(facts)]
    if not together:  # otherwise all nodes compare what each of them knows
        planned += rank_order(plan.rank_order)
    found = {"launch plan": planned, **examine_each(facts)}
    findings = [finding for some in found.values() for finding in some]
    if together:  # what follows takes a while and may depend on these findings
        console = Console(node_prefix(plan.topology.node_rank))
        for finding in findings:
            if finding.level is not Level.INFO:
                console.report(finding.as_event())
    jax = jax or plan.launcher == "jax"
    if child_processes:
        # Missing packages have been reported already; only installed ones can be tried.
        here: list[str] = [
            name for name in ("torch", "deepspeed") if name in plan.packages and _is_there(facts, name)
        ]
        tried: list[str] = ["jax"] if jax else here
        deeper = _deep(plan, env, tried)
        found |= {f"in a child process: {name}": deeper for name in tried}
        findings += deeper
    if together:
        from platform_launch.doctor.cluster.consultation import consult

        ports = ports_of(plan.topology, env)
        between = consult(plan, env, ports=ports, with_jax=jax, join_limit_s=join_limit_s)
        found |= dict.fromkeys(BETWEEN_NODES, between)
        findings += between
    findings.sort(key=lambda finding: -finding.level)
    passed = sum(worst(some) < Level.WARNING for some in found.values())
    return Examination(plan, tuple(findings), tuple(found), passed)


def _planned(env: Environment, request: Request) -> tuple[LaunchPlan, list[Finding]]:
    """Plan the launch. A refused setting becomes a finding, and the rest is planned without it."""
    found: list[Finding] = []
    machine = _machine(env, request, found)
    while True:
        try:
            return build_plan(env, machine, request), found
        except HardwareError as refusal:  # devices that are reported but that nobody can use
            if machine.assumed:
                raise
            found.append(of_refusal(refusal))
            machine = dataclasses.replace(machine, gpus=Gpus(), reports=(), assumed=True)
        except LaunchError as refusal:
            simpler = _without(refusal, request)
            if simpler == request:
                raise
            found.append(of_refusal(refusal))
            request = simpler


def _machine(env: Environment, request: Request, found: list[Finding]) -> Hardware:
    master = None
    with suppress(TopologyError):  # the plan will report it
        master = detect(env, request.overrides).master_addr
    try:
        return hardware.detect(env, master_addr=master)
    except (HardwareError, UsageError) as refusal:  # the driver, or CUDA_VISIBLE_DEVICES
        found.append(of_refusal(refusal))
        return hardware.detect(env, master_addr=master, assume="cpu")


def _without(refusal: LaunchError, request: Request) -> Request:
    """Return the request without the part that was refused: the topology, or the program."""
    if isinstance(refusal, TopologyError):
        return dataclasses.replace(request, overrides=_ALONE)
    return Request(
        root=request.root,
        python=request.python,
        temporary=request.temporary,
        temporary_problem=request.temporary_problem,
        started=request.started,
        default_log_dir=request.default_log_dir,
        overrides=request.overrides,
        examines_only=True,
        log_dir=request.log_dir,
    )


def _is_there(facts: Facts, package: str) -> bool:
    return facts.installation.modules[package].origin is not None


def _deep(plan: LaunchPlan, env: Environment, tried: list[str]) -> list[Finding]:
    variables = plan.child_environment(env.inherited())
    findings: list[Finding] = []
    for name in tried:
        if any(finding.level is Level.ERROR for finding in findings):
            break
        findings += _ops(plan, variables) if name == "deepspeed" else deep.try_library(name, plan, variables)
    return findings


def _ops(plan: LaunchPlan, variables: dict[str, str]) -> list[Finding]:
    """Query DeepSpeed's ops, as `wheel check` does."""
    try:
        node = query_node(
            plan.argv[0], variables, hostname=plan.hardware.host.hostname, gpus=(), timeout_s=deep.LIMIT_S
        )
    except InstallationError as error:
        return [Finding("deepspeed-broken", Level.ERROR, error.message, "deepspeed", error.hint)]
    usable = "broken" not in node.ops.values() and not node.missing_requirements
    return deep.of_deepspeed(warnings(node), f"deepspeed {node.deepspeed}", usable=usable)
