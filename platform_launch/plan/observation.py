"""The variables that make the job's processes observable."""

from __future__ import annotations

import os

from platform_launch.environment import Environment
from platform_launch.observe import FOLDER_VARIABLE, HOOK, SNAPSHOT_VARIABLE
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase

_ROOM = "observe"


def observation_variables(
    env: Environment, folder: str | None, *, binds: bool = False, snapshots: str = ""
) -> list[EnvVar]:
    """Return the variables of the hook; none if the user asked for no observation (no ``folder``).

    ``binds``: the hook is needed in any case, because it binds the ranks to their CPUs. ``snapshots`` is the
    prefix of the files that ranks write when they run out of GPU memory, empty if they should not.
    """
    if folder is None and not binds:
        return []
    path = env.inherited().get("PYTHONPATH", "")
    followed = Phrase("; what was set follows") if path else ""
    why = (
        Phrase("a hook that binds ranks to CPUs (--bind none leaves it out)")
        if folder is None
        else Phrase("a hook, so that a hang can be explained (--no-observe leaves it out)")
    )
    value = f"{HOOK}{os.pathsep}{path}" if path else str(HOOK)
    hook = EnvVar("PYTHONPATH", value, _ROOM, Phrase("{why}{followed}", why=why, followed=followed))
    if folder is None:
        return [hook]
    reason = "file that shows what holds the GPU's memory when a rank runs out of it (--memory-snapshot)"
    return [
        hook,
        EnvVar(
            FOLDER_VARIABLE,
            folder,
            _ROOM,
            "private folder through which the launcher learns what each process is doing",
        ),
        *([EnvVar(SNAPSHOT_VARIABLE, snapshots, _ROOM, reason)] if snapshots else []),
    ]
