"""A page as an answer: its text is made in the event loop, in slices, and heartbeats pass in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from jinja2 import Environment
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SLICE_S = 0.001
"""How long pages may hold the event loop at a time."""


class PageRenderer:
    """Makes the texts of pages, one after the other and each in slices, however many people look."""

    def __init__(self, templates: Environment) -> None:
        self._templates = templates
        self._turn = asyncio.Lock()

    async def text(self, template: str, values: Mapping[str, object]) -> str:
        """Return what a template makes of values; every SLICE_S others have the event loop."""
        async with self._turn:
            pieces: list[str] = []
            until = time.perf_counter() + SLICE_S
            for piece in self._templates.get_template(template).generate(values):
                pieces.append(piece)
                if time.perf_counter() > until:
                    await asyncio.sleep(0)
                    until = time.perf_counter() + SLICE_S
            return "".join(pieces)


class PageResponse(Response):
    """What a template makes of values. All that blocks was done before: they are only put together here.

    In a thread a page would hold heartbeats up for longer: the event loop would have to wait for the
    interpreter after each socket it reads.
    """

    media_type = "text/html"

    def __init__(
        self, renderer: PageRenderer, template: str, values: Mapping[str, object], status: int
    ) -> None:
        super().__init__(status_code=status)
        self._renderer = renderer
        self._template = template
        self._values = values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the text and send it."""
        text = await self._renderer.text(self._template, self._values)
        self.body = text.encode()
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
