"""How the text of a page is made: whole, and with turns for others in between."""

from __future__ import annotations

import asyncio

import pytest
from jinja2 import DictLoader, Environment

from platform_launch.procguard.web import page_response
from platform_launch.procguard.web.page_response import PageRenderer

TEMPLATES = Environment(loader=DictLoader({"rows": "{% for row in rows %}<{{ row }}>{% endfor %}"}))
ROWS = 50


def test_others_have_the_event_loop_while_pages_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_response, "SLICE_S", 0.0)
    seen: list[str] = []

    async def look(renderer: PageRenderer, who: str) -> None:
        rows = [f"{who}{number}" for number in range(ROWS)]
        assert await renderer.text("rows", {"rows": rows}) == "".join(f"<{row}>" for row in rows)
        seen.append(who)

    async def beat(pages: list[asyncio.Task[None]]) -> None:
        while not all(page.done() for page in pages):
            seen.append("beat")
            await asyncio.sleep(0)

    async def server() -> None:
        renderer = PageRenderer(TEMPLATES)
        pages = [asyncio.ensure_future(look(renderer, who)) for who in "ab"]
        await beat(pages)

    asyncio.run(server())
    first, second = seen.index("a"), seen.index("b")
    assert seen[:first].count("beat") >= ROWS, "heartbeats pass between the pieces of a page"
    assert seen[first:second].count("beat") >= ROWS, "pages that are asked for at once are made in turn"
