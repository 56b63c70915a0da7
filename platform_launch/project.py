"""Where the project's own files lie: a checkout, or the copy a wheel carries."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def logs_folder() -> Path:
    """Return where logs go by default: beside a checkout, else below the working directory."""
    root = project_root()
    return (Path.cwd() if root.is_relative_to(_PACKAGE) else root) / "logs"


def project_root() -> Path:
    """Return the folder that holds ``configs/``, ``deepspeed/`` and ``examples/``."""
    checkout = _PACKAGE.parent
    if (checkout / "configs" / "recipes.yaml").is_file():
        return checkout
    return _PACKAGE / "_project"
