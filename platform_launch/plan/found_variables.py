"""Variables in the environment: warns about misleading ones, and translates unread ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware
from platform_launch.plan import known_variables as known
from platform_launch.plan.nccl import EXACTLY, exact_interface, is_gb200
from platform_launch.plan.variables import EnvVar
from platform_launch.plan.warning import PlanWarning
from platform_launch.text import Phrase, joined
from platform_launch.topology import Topology

_ROOM = "found in the environment"
# The names of the variables that the shell entrypoint took from configs/platform.env, separated by spaces.
FROM_FILE = "PLATFORM_LAUNCH_FROM_FILE"
# Which variables `simulate` chose for its nodes, in the same form.
FROM_SIMULATE = "PLATFORM_LAUNCH_FROM_SIMULATE"
_EXACT = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
_COMMUNICATION = ("NCCL_", "GLOO_", "TORCH_")


def translate(env: Environment) -> tuple[list[EnvVar], list[PlanWarning]]:
    """Return the replacements of renamed and unread variables, and a warning for each."""
    chosen: list[EnvVar] = []
    found: list[PlanWarning] = []
    for old, new in known.RENAMED.items():
        if old in env:
            text = Phrase("{old} was renamed {new} in torch 2.2: the old name is not read", old=old, new=new)
            found.append(PlanWarning("variable-renamed", old, text))
            if new not in env:
                chosen.append(EnvVar(new, env[old], _ROOM, Phrase("translated from {old}", old=old)))
    timeouts = [name for name in known.FAKE_TIMEOUTS if name in env]
    if timeouts:
        more_chosen, warning = _timeouts(env, timeouts)
        chosen += more_chosen
        found.append(PlanWarning("variable-unread", timeouts[0], warning))
    return chosen, found


def _timeouts(env: Environment, names: list[str]) -> tuple[list[EnvVar], Phrase]:
    """Turn the longest unread timeout (seconds) into the variables that are read."""
    shown = joined(f"{name}={env[name]}" for name in names)
    values = [env[name].strip() for name in names]
    seconds = [int(value) for value in values if value.isascii() and value.isdigit()]
    if not seconds or max(seconds) == 0:
        text = "{shown}: nothing reads it, and it is not a number of seconds; unset it"
        return [], Phrase(text, shown=shown)
    longest = max(seconds)
    meant = Phrase("translated from {names}", names=joined(names))
    chosen = [
        EnvVar(
            "DEEPSPEED_TIMEOUT", str(math.ceil(longest / 60)), _ROOM, Phrase("minutes; {meant}", meant=meant)
        ),
        EnvVar(
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(longest), _ROOM, Phrase("seconds; {meant}", meant=meant)
        ),
    ]
    chosen = [variable for variable in chosen if variable.name not in env]
    text = (
        "{shown}: nothing reads it. Translated to the process group's timeout: {chosen}. DeepSpeed takes its "
        "timeout from there. A plain Accelerator() does not: pass InitProcessGroupKwargs(timeout=…). A "
        "script that calls init_process_group itself must pass timeout="
    )
    named = joined(f"{v.name}={v.value}" for v in chosen) or Phrase("already set by you")
    return chosen, Phrase(text, shown=shown, chosen=named)


def set_outside(env: Environment) -> list[EnvVar]:
    """Return the communication variables that were set outside: by the user, the platform or platform.env."""
    of_file = dict.fromkeys(env.get(FROM_FILE, "").split(), Phrase("in platform.env"))
    ours = of_file | dict.fromkeys(env.get(FROM_SIMULATE, "").split(), Phrase("by simulate"))
    names = sorted(
        name
        for name in env
        if name.isidentifier()
        and (name.startswith(_COMMUNICATION) or (name in ours and not name.startswith("PLATFORM_LAUNCH_")))
    )
    return [EnvVar(name, env[name], "outside", _reason(name, env[name], ours)) for name in names]


def _reason(name: str, value: str, ours: Mapping[str, str]) -> str:
    who = ours.get(name, Phrase("before the launch, by you or the platform"))
    exactly = Phrase("; {exactly}", exactly=EXACTLY) if name in _EXACT and value.startswith("=") else ""
    return Phrase("set {who}; not changed{exactly}", who=who, exactly=exactly)


def warn(env: Environment, topology: Topology, hardware: Hardware) -> list[PlanWarning]:
    """Return warnings about the communication variables that were set outside."""
    found = [warning for name in sorted(env) if (warning := _warning_of(name, env)) is not None]
    if is_gb200(hardware) and env.get("NCCL_IB_DISABLE", "").strip() == "1":  # our own default there
        found = [warning for warning in found if warning.origin != "NCCL_IB_DISABLE"]
    chosen = env.get("NCCL_SOCKET_IFNAME")
    if (
        chosen is not None
        and not hardware.assumed
        and hardware.interfaces
        and exact_interface(chosen, hardware) is None
    ):
        have = joined(interface.name for interface in hardware.interfaces)
        text = Phrase(
            "NCCL_SOCKET_IFNAME={chosen} selects no interface of this node (it has {have}): NCCL "
            "would stop with 'no socket interface found'",
            chosen=chosen,
            have=have,
        )
        found.append(PlanWarning("interface-unknown", "NCCL_SOCKET_IFNAME", text))
    if is_gb200(hardware) and topology.nnodes > 1:
        found += _gb200(env, hardware)
    return found


def _warning_of(name: str, env: Environment) -> PlanWarning | None:
    if not name.startswith("NCCL_"):
        return None
    if (reason := known.lookup(known.DEBUG_ONLY, name)) is not None:
        if name.endswith("_DISABLE") and env[name].strip() in ("", "0"):
            return None
        text = Phrase(
            "{name}={value} is meant for debugging ({reason}); passed on as set",
            name=name,
            value=env[name],
            reason=reason,
        )
        return PlanWarning("variable-debug-only", name, text)
    if name == "NCCL_LAUNCH_MODE" and env[name].strip().upper() != "GROUP":
        return None
    if (reason := known.lookup(known.DEAD, name)) is not None:
        text = Phrase("{name} is not read any more: {reason}", name=name, reason=reason)
        return PlanWarning("variable-dead", name, text)
    if name in known.DEPRECATED:
        text = Phrase("{name} is deprecated: use {instead}", name=name, instead=known.DEPRECATED[name])
        return PlanWarning("variable-deprecated", name, text)
    if not known.is_known_nccl(name):
        from difflib import get_close_matches

        close = get_close_matches(name, known.PRODUCTION | set(known.DEBUG_ONLY), n=1, cutoff=0.85)
        meant = Phrase("; did you mean {name}?", name=close[0]) if close else ""
        text = Phrase("NCCL's documentation has no variable {name}{meant}", name=name, meant=meant)
        return PlanWarning("variable-unknown", name, text)
    return None


def _gb200(env: Environment, hardware: Hardware) -> list[PlanWarning]:
    if env.get("NCCL_MNNVL_ENABLE") == "0":
        text = Phrase("NCCL_MNNVL_ENABLE=0 disables NVLink between the nodes of this rack")
        return [PlanWarning("rack-fabric", "NCCL_MNNVL_ENABLE", text)]
    if not hardware.host.imex_channel and not hardware.assumed:
        channel = "/dev/nvidia-caps-imex-channels/channel0"
        cause = Phrase(
            "GB200 without an IMEX channel ({channel}): NVLink between nodes cannot be used", channel=channel
        )
        text = Phrase(
            ("{cause}; request the channel in the job, or set NCCL_MNNVL_ENABLE=0 to run without it"),
            cause=cause,
        )
        return [PlanWarning("rack-fabric", "NCCL_MNNVL_ENABLE", text)]
    return []
