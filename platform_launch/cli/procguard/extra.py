"""Imports that need the extra ``procguard``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from platform_launch.errors import InstallationError
from platform_launch.extras import install_extra


@contextmanager
def needs_procguard() -> Iterator[None]:
    """Import the extra's packages in this block. Raises InstallationError that names a missing one."""
    try:
        yield
    except ImportError as error:
        raise InstallationError(
            f"procguard needs the package {error.name}, which is not installed",
            install_extra("procguard"),
        ) from error
