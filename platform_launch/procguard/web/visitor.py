"""Who looks at a page. The server says so: the pages know nothing of sessions and cookies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request


@dataclass(frozen=True)
class Visitor:
    """A person who is logged in. ``csrf`` is sent as X-CSRF-Token with each change that the page asks for."""

    name: str
    operator: bool
    """Whether the role may change things; a viewer sees no controls that would be refused."""
    admin: bool
    """Whether the role may say who else logs in."""
    csrf: str


FindVisitor = Callable[[Request], Visitor | None]
"""Who sent a request, None where nobody is logged in. May read the database: not for the event loop."""
