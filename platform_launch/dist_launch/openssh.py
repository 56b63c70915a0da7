"""OpenSSH's client, for logins: a terminal, the escape keys and the habits that its users know."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def become_ssh(
    config: Path, alias: str, command: Sequence[str], *, options: Sequence[str], terminal: bool
) -> NoReturn:
    """Turn this process into ``ssh`` on a node. Raises OSError where there is none."""
    argv = ["ssh", "-F", str(config), *options, *(["-t"] if terminal and command else []), alias]
    os.execvp("ssh", [*argv, *command])  # noqa: S606
