"""What opens a training's processes to their launcher's questions: two variables."""

from __future__ import annotations

import os

from platform_launch.environment import Environment
from platform_launch.observe import FOLDER_VARIABLE, HOOK
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase

_ROOM = "observe"


def observation_variables(env: Environment, folder: str | None) -> list[EnvVar]:
    """Return the variables of the hook; none where the user asked for no observation (no ``folder``)."""
    if folder is None:
        return []
    path = env.inherited().get("PYTHONPATH", "")
    followed = "; what was set follows" if path else ""
    return [
        EnvVar(
            "PYTHONPATH",
            f"{HOOK}{os.pathsep}{path}" if path else str(HOOK),
            _ROOM,
            Phrase(
                "a hook, so that a hang can be explained (--no-observe leaves it out){followed}",
                followed=followed,
            ),
        ),
        EnvVar(FOLDER_VARIABLE, folder, _ROOM, "private folder where each process answers what it is doing"),
    ]
