"""This node and the quarantine: it takes no part while it is in it, and goes in when its devices fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UnfitNodeError
from platform_launch.events import Event, event
from platform_launch.hardware import Gpu
from platform_launch.health import quarantine
from platform_launch.health.quarantine import (
    DEFAULT_S,
    FILE_VARIABLE,
    NODE_NAME_VARIABLE,
    QuarantinedNode,
    quarantined,
)
from platform_launch.text import Phrase

if TYPE_CHECKING:
    from platform_launch.health.finding import NodeHealth


def node_name(env: Environment) -> str:
    """Return the name by which a scheduler knows this machine; a pod's own name says nothing of it."""
    variable = env.text(NODE_NAME_VARIABLE) or env.text("SLURMD_NODENAME")
    return variable.value if variable is not None and variable.value else env.hostname


def quarantine_file(env: Environment, flag: Path | None) -> Path | None:
    """Return the file that was named by flag or variable."""
    variable = env.text(FILE_VARIABLE)
    return flag or (Path(variable.value) if variable is not None and variable.value else None)


def held_by(
    file: Path, env: Environment, gpus: Sequence[Gpu], tell: Callable[[Event], None] | None = None
) -> QuarantinedNode | None:
    """Return the entry that holds this node or one of its GPUs. Raises InputError as read."""
    name = node_name(env)
    entries = quarantine.read(file, tell=tell)
    return quarantined(entries, {name: [gpu.uuid for gpu in gpus if gpu.uuid]}).get(name)


def refuse_if_quarantined(
    file: Path | None, env: Environment, gpus: Sequence[Gpu], tell: Callable[[Event], None]
) -> None:
    """Raise UnfitNodeError where this node, or one of its GPUs, is in quarantine; InputError as read."""
    if file is None:
        return
    name = node_name(env)
    held = held_by(file, env, gpus, tell)
    if held is not None:
        under = Phrase(", under the name {node}", node=held.node) if held.node != name else ""
        raise UnfitNodeError(
            Phrase(
                "node {name} is {held}{under} ({file})",
                name=name,
                held=held.in_words(),
                under=under,
                file=file,
            ),
            Phrase(
                "use another node; `platform-launch doctor --release --quarantine {file}` there releases it",
                file=file,
            ),
        )


def remember(
    file: Path | None, env: Environment, gpus: Sequence[Gpu], health: NodeHealth | None, job: str
) -> Event | None:
    """Put this node in quarantine for a day where it is bad; return what to say of it."""
    if file is None or health is None or not health.bad:
        return None
    now, name = time.time(), node_name(env)
    uuids = tuple(gpu.uuid for gpu in gpus if f"GPU {gpu.index}" in health.devices)
    reason, sentence = "; ".join(health.reasons), health.sentence().document()
    try:
        quarantine.add(file, QuarantinedNode(name, now, now + DEFAULT_S, reason, job, uuids, sentence))
    except InputError as error:
        return event("not-quarantined", node_name=name, problem=error.message)
    return event("node-quarantined", node_name=name, until=quarantine.utc(now + DEFAULT_S), path=str(file))
