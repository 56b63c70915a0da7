"""Variables found in the environment: warn of those that mislead, and translate what was meant."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.settings import known_variables as known
from platform_launch.settings.nccl import exact_interface, is_gb200
from platform_launch.settings.variables import EnvVar
from platform_launch.topology import Topology

_ROOM = "found in the environment"


@dataclass(frozen=True)
class Notice:
    """What a user should know of a variable. ``kind`` is a stable word for it: ``renamed``, ``dead``, …."""

    kind: str
    variable: str
    text: str


def notices(env: Environment, topology: Topology, hardware: Hardware) -> list[Notice]:
    """Return everything to be said of the variables that were set outside."""
    return [*_translated(env)[1], *_misleading(env, topology, hardware)]


def translate(env: Environment) -> tuple[list[EnvVar], list[str]]:
    """Return the variables that carry what renamed and unread ones meant, and a warning for each."""
    chosen, found = _translated(env)
    return chosen, [notice.text for notice in found]


def warn(env: Environment, topology: Topology, hardware: Hardware) -> list[str]:
    """Return what a user should know of the communication variables that were set outside."""
    return [notice.text for notice in _misleading(env, topology, hardware)]


def _translated(env: Environment) -> tuple[list[EnvVar], list[Notice]]:
    chosen: list[EnvVar] = []
    found: list[Notice] = []
    for old, new in known.RENAMED.items():
        if old in env:
            text = f"{old} was renamed {new} in torch 2.2: the old name is not read"
            found.append(Notice("renamed", old, text))
            if new not in env:
                chosen.append(EnvVar(new, env[old], _ROOM, f"meant by {old}"))
    timeouts = [name for name in known.FAKE_TIMEOUTS if name in env]
    if timeouts:
        more_chosen, warning = _timeouts(env, timeouts)
        chosen += more_chosen
        found.append(Notice("unread", timeouts[0], warning))
    return chosen, found


def _timeouts(env: Environment, names: list[str]) -> tuple[list[EnvVar], str]:
    """Turn the longest of the timeouts nobody reads (seconds) into the variables that are read."""
    shown = ", ".join(f"{name}={env[name]}" for name in names)
    values = [env[name].strip() for name in names]
    seconds = [int(value) for value in values if value.isascii() and value.isdigit()]
    if not seconds or max(seconds) == 0:
        return [], f"{shown}: nothing reads it, and it is not a number of seconds; unset it"
    longest = max(seconds)
    meant = f"meant by {', '.join(names)}"
    chosen = [
        EnvVar("DEEPSPEED_TIMEOUT", str(math.ceil(longest / 60)), _ROOM, f"minutes; {meant}"),
        EnvVar("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(longest), _ROOM, f"seconds; {meant}"),
    ]
    chosen = [variable for variable in chosen if variable.name not in env]
    return chosen, (
        f"{shown}: nothing reads it. Translated to the process group's timeout: "
        + (", ".join(f"{v.name}={v.value}" for v in chosen) or "already set by you")
        + "; a script that calls init_process_group itself must pass timeout="
    )


def _misleading(env: Environment, topology: Topology, hardware: Hardware) -> list[Notice]:
    found = [notice for name in sorted(env) if (notice := _notice_of(name, env)) is not None]
    chosen = env.get("NCCL_SOCKET_IFNAME")
    if (
        chosen is not None
        and not hardware.assumed
        and hardware.interfaces
        and exact_interface(chosen, hardware) is None
    ):
        have = ", ".join(interface.name for interface in hardware.interfaces)
        text = (
            f"NCCL_SOCKET_IFNAME={chosen} selects no interface of this node (it has {have}): NCCL would stop "
            "with 'no socket interface found'"
        )
        found.append(Notice("interface", "NCCL_SOCKET_IFNAME", text))
    if is_gb200(hardware) and topology.nnodes > 1:
        found += _gb200(env, hardware)
    return found


def _notice_of(name: str, env: Environment) -> Notice | None:
    if not name.startswith("NCCL_"):
        return None
    if (reason := known.lookup(known.DEBUG_ONLY, name)) is not None:
        text = f"{name}={env[name]} is meant for debugging ({reason}); passed on as set"
        return Notice("debug-only", name, text)
    if name == "NCCL_LAUNCH_MODE" and env[name].strip().upper() != "GROUP":
        return None
    if (reason := known.lookup(known.DEAD, name)) is not None:
        return Notice("dead", name, f"{name} is not read any more: {reason}")
    if name in known.DEPRECATED:
        return Notice("deprecated", name, f"{name} is deprecated: use {known.DEPRECATED[name]}")
    if not known.is_known_nccl(name):
        close = difflib.get_close_matches(name, known.PRODUCTION | set(known.DEBUG_ONLY), n=1, cutoff=0.85)
        meant = f"; did you mean {close[0]}?" if close else ""
        return Notice("unknown", name, f"{name} is no variable of NCCL's documentation{meant}")
    return None


def _gb200(env: Environment, hardware: Hardware) -> list[Notice]:
    if env.get("NCCL_MNNVL_ENABLE") == "0":
        text = "NCCL_MNNVL_ENABLE=0 gives up NVLink between the nodes of this rack"
        return [Notice("rack-fabric", "NCCL_MNNVL_ENABLE", text)]
    if not hardware.host.imex_channel and not hardware.assumed:
        channel = "/dev/nvidia-caps-imex-channels/channel0"
        cause = f"GB200 without an IMEX channel ({channel}): NVLink between nodes cannot be used"
        text = f"{cause}; ask for the channel in the job, or set NCCL_MNNVL_ENABLE=0 to do without"
        return [Notice("rack-fabric", "NCCL_MNNVL_ENABLE", text)]
    return []
