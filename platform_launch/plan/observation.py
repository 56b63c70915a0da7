"""What opens a training's processes to their launcher's questions: two variables."""

from __future__ import annotations

import os

from platform_launch.environment import Environment
from platform_launch.observe import FOLDER_VARIABLE, HOOK
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase

_ROOM = "observe"


def observation_variables(env: Environment, folder: str | None, *, binds: bool = False) -> list[EnvVar]:
    """Return the variables of the hook; none where the user asked for no observation (no ``folder``).

    ``binds``: the hook is needed in any case, since it binds the ranks to their CPUs.
    """
    if folder is None and not binds:
        return []
    path = env.inherited().get("PYTHONPATH", "")
    followed = "; what was set follows" if path else ""
    why = (
        Phrase("a hook that binds ranks to CPUs (--bind none leaves it out)")
        if folder is None
        else Phrase("a hook, so that a hang can be explained (--no-observe leaves it out)")
    )
    value = f"{HOOK}{os.pathsep}{path}" if path else str(HOOK)
    hook = EnvVar("PYTHONPATH", value, _ROOM, Phrase("{why}{followed}", why=why, followed=followed))
    if folder is None:
        return [hook]
    return [
        hook,
        EnvVar(FOLDER_VARIABLE, folder, _ROOM, "private folder where each process answers what it is doing"),
    ]
