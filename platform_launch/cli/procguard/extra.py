"""What only the extra ``procguard`` installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from platform_launch.errors import InstallationError
from platform_launch.extras import install_extra


@contextmanager
def needs_procguard() -> Iterator[None]:
    """Import in this block what the extra brings. Raises InstallationError that names what is missing."""
    try:
        yield
    except ImportError as error:
        raise InstallationError(
            f"procguard needs the package {error.name}, which is not here",
            install_extra("procguard"),
        ) from error
