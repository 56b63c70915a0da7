"""The launch record: plan, versions and outcome of one launch, as JSON beside its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from platform_launch import __version__
from platform_launch.hardware import packages
from platform_launch.plan import LaunchPlan

# Kubernetes shows what a container writes here as the reason of its end; it keeps 4096 bytes.
_TERMINATION_LOG = Path("/dev/termination-log")
_TERMINATION_BYTES = 4096

PACKAGES = ("torch", "accelerate", "deepspeed", "transformers", "jax", "nvidia-ml-py")


def write_record(plan: LaunchPlan, outcome: dict[str, object] | None = None) -> Path | None:
    """Write the record of a launch and return its path, or None when the folder cannot be written.

    ``outcome`` is added when the training has ended. A record is a convenience: it never stops a launch.
    """
    path = plan.log_path.with_suffix(".json")
    document = {**plan.as_dict(), "versions": versions(), "git_revision": git_revision(plan.training.script)}
    if outcome is not None:
        document["outcome"] = outcome
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError:
        return None
    return path


def first_failed(records: Iterable[Path]) -> int | None:
    """Return the node that failed first, by the records of one launch; None where none says so.

    Nodes that met say the same; of those that did not meet, the one whose training was the shortest.
    """
    failed: list[tuple[float, int]] = []
    for record in records:
        with suppress(OSError, ValueError, KeyError, TypeError):  # another launch may be writing there
            outcome = json.loads(record.read_text(encoding="utf-8"))["outcome"]
            failed.append((float(outcome["duration_s"]), int(outcome["first_failed_node"])))
    return min(failed)[1] if failed else None


def write_termination_message(text: str, path: Path = _TERMINATION_LOG) -> None:
    """Leave the reason of a failure where Kubernetes looks for it; elsewhere there is no such file."""
    if path.exists():
        with suppress(OSError):
            path.write_bytes(text.encode()[:_TERMINATION_BYTES])


def versions() -> dict[str, str]:
    """Return the versions of Python and of a training's main packages, without importing them."""
    own = {"platform-launch": __version__, "python": sys.version.split()[0]}
    return {**own, **packages.versions(PACKAGES)}


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
