"""Why no job can run on a node: what ``verify`` reports there, and ``run`` refuses to start with."""

from __future__ import annotations

from platform_launch.dist_launch.folder import WaitFolder, write_private

# An empty file finds room on a disk that is full.
_PROBE_BYTES = 16 * 1024


def hindrances(folder: WaitFolder) -> list[str]:
    """Return why no job can run on this node."""
    found = []
    if folder.owner() is None:
        found.append("its dist-launch wait has ended: start it again")
    try:
        folder.read_environment()
    except (OSError, ValueError) as error:
        found.append(f"the variables that wait captured cannot be read: {error}")
    probe = folder.path / "probe"
    try:
        write_private(probe, "x" * _PROBE_BYTES)
        probe.unlink()
    except OSError as error:
        found.append(f"{folder.path} cannot be written: {error.strerror}")
    return found
