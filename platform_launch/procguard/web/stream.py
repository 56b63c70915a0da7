"""Server-sent events: "something changed", at most once a second; the page then fetches what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from platform_launch.procguard.control import Control

REFRESH_S = 1.0
ALIVE_S = 5.0
"""A page that heard nothing for three times as long takes the server for gone."""
LIFETIME_S = 600.0
"""Then the page connects anew, and is asked again who it is."""


async def changes(control: Control) -> AsyncIterator[str]:
    """Yield an event for each time something visible changed, and a sign of life in between."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LIFETIME_S
    version = control.version
    said = loop.time()
    yield f"retry: 1000\nevent: alive\ndata: {version}\n\n"
    while loop.time() < end:
        await asyncio.sleep(REFRESH_S)
        if control.version != version:
            version = control.version
            yield f"event: changed\ndata: {version}\n\n"
        elif loop.time() - said < ALIVE_S:
            continue
        else:
            yield f"event: alive\ndata: {version}\n\n"
        said = loop.time()
