"""Packages that only the extra ``procguard`` installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from platform_launch.errors import InstallationError
from platform_launch.extras import install_extra
from platform_launch.text import Phrase


@contextmanager
def needs_procguard() -> Iterator[None]:
    """Import the extra's packages in this block. Raises InstallationError that names the missing one."""
    try:
        yield
    except ImportError as error:
        raise InstallationError(
            Phrase("procguard needs the package {name}, which is not installed", name=error.name),
            install_extra("procguard"),
        ) from error
