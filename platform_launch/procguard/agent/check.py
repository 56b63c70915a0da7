"""Whether a command may and could start here, asked before anybody starts."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from platform_launch.errors import shown, shown_list
from platform_launch.hardware import ports
from platform_launch.procguard.agent.variables import not_a_place
from platform_launch.procguard.api.wire import WorkerOrder

ANY = "*"


def is_allowed(command: Sequence[str], allowed: Sequence[str]) -> bool:
    """Tell whether a command is one of ``allowed``: word by word, with any further words after a last ``*``.

    Raises ValueError for a pattern whose quotes do not close.
    """
    return any(_fits(tuple(command), tuple(shlex.split(pattern))) for pattern in allowed)


def _fits(command: tuple[str, ...], words: tuple[str, ...]) -> bool:
    if words[-1:] == (ANY,):
        return command[: len(words) - 1] == words[:-1]
    return command == words


def why_not(
    order: WorkerOrder,
    *,
    allowed: Sequence[str] | None,
    directory: Path,
    path: str,
) -> str:
    """Return why an order cannot be carried out here and what to do, empty when nothing speaks against it.

    ``path`` is the PATH of the training.
    """
    foreign = not_a_place(order.environment)
    if foreign:
        return (
            f"the server wants to set {shown_list(foreign)}, which is no part of a worker's place: this "
            "agent sets only ranks and the master's address; update it if the server is newer"
        )
    if unfit := _unfit(order, allowed):
        return unfit
    if not order.command:
        return "no command: set the group's, or start this agent with --command"
    if any("\0" in word for word in order.command):
        return "the command holds a zero byte, which no program can be given: correct the group's command"
    if allowed is not None and not is_allowed(order.command, allowed):
        return (
            "the group's command is not allowed on this node: its agent is limited to "
            f"{shown_list(allowed)}; start it with a further --allow, or change the group's command"
        )
    directory = directory / order.directory
    path = order.variables.get("PATH", path)
    return _directory(directory) or _program(order.command[0], directory, path) or _port(order.check_port)


def _unfit(order: WorkerOrder, allowed: Sequence[str] | None) -> str:
    """Say why the group's variables and directory are not for here: they make another thing of a command."""
    wrong = [name for name, value in order.variables.items() if "\0" in value or "=" in name or not name]
    if wrong or "\0" in order.directory:
        what = shown_list(sorted(wrong) or ["the directory"])
        return f"no environment can hold {what}: correct the group's settings"
    if allowed is not None and order.variables:
        return (
            f"the group sets {shown_list(sorted(order.variables))}, and this node's agent is limited to "
            "commands, which variables could change: leave them out, or put them into a script it allows"
        )
    if allowed is not None and order.directory:
        return (
            f"the group starts in {shown(order.directory)}, and this node's agent is limited to commands of "
            "its own directory: leave the directory empty"
        )
    return ""


def _directory(directory: Path) -> str:
    if not directory.is_dir():
        return (
            f"the directory {directory} is not here: create it, or start the agent with another --directory"
        )
    if not os.access(directory, os.X_OK):
        return f"the directory {directory} may not be entered: correct its permissions"
    return ""


def _program(program: str, directory: Path, path: str) -> str:
    if "/" in program:
        file = directory / program
        if not file.is_file():
            return f"there is no program {file}: correct the command, or bring the file to this node"
        if not os.access(file, os.X_OK):
            return f"{file} may not be executed: chmod +x it, or name its interpreter in the command"
        return ""
    if shutil.which(program, path=path) is None:
        return (
            f"{shown(program)} is not in this agent's PATH ({path}): name its whole path, or start the agent "
            "in the training's environment"
        )
    return ""


def _port(number: int | None) -> str:
    if number is None:
        return ""
    port = ports.look(number)
    if port.taken:
        return f"port {number} is taken by {port.held_by()}: end it, or set another Master port"
    if port.problem:
        return f"nothing can listen on port {number}: {port.problem}; set another Master port"
    return ""
