"""How the text of a page is made: compiled once, whole, and with turns for others in between."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from platform_launch.procguard.web import page_response
from platform_launch.procguard.web.page_response import PageRenderer
from platform_launch.procguard.web.template_cache import TemplateCache

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


def test_a_template_is_compiled_once_for_all_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def shown(text: str) -> tuple[str, int]:
        """Return what a new server shows, and how many templates it compiled."""
        compiled = []

        class Counting(Environment):
            def _generate(self, *args: object, **kwargs: object) -> str:
                compiled.append(args)
                return super()._generate(*args, **kwargs)  # type: ignore[arg-type]

        made = Counting(loader=DictLoader({"page": text}), bytecode_cache=TemplateCache())
        return made.get_template("page").render(n=7), len(compiled)

    assert [shown("one {{ n }}") for _ in range(2)] == [("one 7", 1), ("one 7", 0)]
    assert [shown("two {{ n }}") for _ in range(2)] == [("two 7", 1), ("two 7", 0)]
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    kept.write_bytes(kept.read_bytes()[:-9])
    assert [shown("two {{ n }}") for _ in range(2)] == [("two 7", 1), ("two 7", 0)]
    kept.unlink()
    kept.mkdir()  # as good as a folder that may not be written: nothing is kept
    assert [shown("two {{ n }}") for _ in range(2)] == [("two 7", 1), ("two 7", 1)]
