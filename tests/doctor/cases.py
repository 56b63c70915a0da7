"""Facts of a healthy node, and what to change in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from platform_launch.doctor import Finding, Level, examine
from platform_launch.doctor.facts import Facts, Installation
from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.hardware.names import ResolverAnswer
from platform_launch.hardware.packages import Module, TorchBuild
from platform_launch.hardware.ports import Port
from platform_launch.hardware.storage import Storage
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.request import Request
from platform_launch.project import project_root
from tests.plan.machines import machine

TWO_NODES = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def planned(env: dict[str, str], hardware: Hardware, **request: Any) -> LaunchPlan:
    values: dict[str, Any] = {
        "root": project_root(),
        "python": "/env/bin/python",
        "temporary": "/local",
        "started": "20260102-030405",
        "default_log_dir": project_root() / "logs",
        "example": "taehv",
        **request,
    }
    return build_plan(Environment(env, hostname="node0"), hardware, Request(**values))


def healthy(env: dict[str, str] | None = None, hardware: Hardware | None = None, **changes: Any) -> Facts:
    """Return node 0 of two, with eight GPUs and nothing wrong; ``env`` adds variables."""
    variables = {**TWO_NODES, **(env or {})}
    plan = planned(variables, hardware or machine(8))
    folder = Path("/lib/python3")
    roomy = Storage(Path("/data"), 1000.0, 500.0, 10**9)
    installation = Installation(
        python="/env/bin/python",
        prefix=Path("/env"),
        active=Path("/env"),
        user_site=None,
        modules={name: Module(name, folder / name / "__init__.py") for name in plan.packages},
        torch=TorchBuild("2.11.0+cu126", "12.6", None),
    )
    facts = Facts(
        env=Environment(variables, hostname="node0"),
        plan=plan,
        installation=installation,
        own_name=ResolverAnswer("node0", ("10.0.0.1",)),
        master_name=ResolverAnswer("10.0.0.1", ("10.0.0.1",)),
        reverse_name=ResolverAnswer("10.0.0.1", ("node0",)),
        storage={"logs": roomy, "output": roomy, "temporary": roomy, "shm": roomy},
        master_port=Port(29500),
        interfaces=frozenset({"lo", "eth0"}),
        available_memory_gib=500.0,
        clock_s=1.8e9,
    )
    return dataclasses.replace(facts, **changes)


def installed(facts: Facts, **changes: Any) -> Facts:
    return dataclasses.replace(facts, installation=dataclasses.replace(facts.installation, **changes))


def named(facts: Facts, **answers: ResolverAnswer) -> Facts:
    changes: dict[str, Any] = {f"{whose}_name": answer for whose, answer in answers.items()}
    return dataclasses.replace(facts, **changes)


def stored(facts: Facts, **changes: Storage) -> Facts:
    return dataclasses.replace(facts, storage={**facts.storage, **changes})


def only(facts: Facts, finding_id: str, level: Level = Level.WARNING) -> Finding:
    """Return the one finding, which must have this id and level."""
    found = examine(facts)
    assert [(finding.id, finding.level) for finding in found] == [(finding_id, level)], found
    return found[0]
