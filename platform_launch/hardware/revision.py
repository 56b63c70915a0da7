"""Which commit is checked out, read from git's own files: no git need be installed."""

from __future__ import annotations

from pathlib import Path


def git_revision(path: Path) -> str | None:
    """Return the commit that is checked out around ``path``, or None outside a repository."""
    for folder in path.resolve().parents:
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
