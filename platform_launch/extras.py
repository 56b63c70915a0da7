"""How to install missing packages into the running Python, which need not be the first on PATH."""

from __future__ import annotations

import sys
from shlex import quote

from platform_launch.project import project_root


def pip_install(*packages: str) -> str:
    """Return the command that installs packages into this Python."""
    return " ".join([quote(sys.executable), "-m pip install", *map(quote, packages)])


def install_extra(extra: str) -> str:
    """Return the command that adds one of this project's extras to this Python."""
    return pip_install(named(extra))


def named(extra: str) -> str:
    """Return the requirement for one of this project's extras.

    A checkout that pip did not install is named by its folder, because no package index has it.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # a launch needs it only here

    try:
        distribution("platform-launch")
    except PackageNotFoundError:
        return f"{project_root()}[{extra}]"
    return f"platform-launch[{extra}]"
