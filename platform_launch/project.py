"""Where the project's own files are: a checkout, or the copy in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from platform_launch.files import made_of, yaml_values

_PACKAGE = Path(__file__).resolve().parent


def logs_folder() -> Path:
    """Return the default log folder: in the checkout, or else below the working directory."""
    root = project_root()
    return (Path.cwd() if root.is_relative_to(_PACKAGE) else root) / "logs"


def project_root() -> Path:
    """Return the folder that holds ``configs/``, ``deepspeed/`` and ``examples/``."""
    checkout = _PACKAGE.parent
    if (checkout / "configs" / "recipes.yaml").is_file():
        return checkout
    return _PACKAGE / "_project"


def yaml_of(file: Path) -> Any:
    """Return the values in a YAML file; those of a file of this project are cached.

    PyYAML takes 15 ms to import. Raises OSError, NotYamlError.
    """
    if not file.is_relative_to(project_root()):
        return yaml_values(file.read_bytes())
    return made_of(_PACKAGE / file.name, [file], lambda: yaml_values(file.read_bytes()))


def git_revision(path: Path | None) -> str | None:
    """Return the commit that is checked out around ``path``, or None outside a repository."""
    for folder in path.resolve().parents if path is not None else ():
        git = folder / ".git"
        try:
            if git.is_file():  # a worktree or submodule: the file names the real folder
                git = (folder / git.read_text(encoding="utf-8").split("gitdir:", 1)[1].strip()).resolve()
            head = (git / "HEAD").read_text(encoding="utf-8").strip()
            return _resolve(git, head)
        except (OSError, IndexError, UnicodeDecodeError):
            continue
    return None


def _resolve(git: Path, head: str) -> str | None:
    if not head.startswith("ref: "):
        return head
    reference = head.removeprefix("ref: ")
    common = git / "commondir"
    roots = [git, (git / common.read_text(encoding="utf-8").strip())] if common.is_file() else [git]
    for root in roots:
        if (root / reference).is_file():
            return (root / reference).read_text(encoding="utf-8").strip()
        packed = root / "packed-refs"
        if packed.is_file():
            for line in packed.read_text(encoding="utf-8").splitlines():
                if line.endswith(f" {reference}"):
                    return line.split(" ", 1)[0]
    return None
