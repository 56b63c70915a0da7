"""What tests of the page share: a browser, a real server, agents that speak HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from tests.lab.browser import LIMIT_MS, Watched, chromium, requires_chromium
from tests.procguard.web.lab import PASSWORDS, Agent, Lab, Visit, lab, log_in

expect.set_options(timeout=LIMIT_MS)


def pytest_itemcollected(item: pytest.Item) -> None:
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(requires_chromium)


@pytest.fixture(scope="module")  # other modules have a browser, or asyncio, of their own
def browser() -> Iterator[Browser]:
    """Chromium, which makes a test that takes it one of the labs."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def agents() -> dict[str, Agent]:
    """The agents by node, once the server runs."""
    return {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, agents: dict[str, Agent]) -> Iterator[Lab]:
    with ExitStack() as stack:
        found = stack.enter_context(lab(tmp_path_factory.mktemp("server")))
        for node in ("gn6", "gn7", "gn39", "gn40"):
            agents[node] = stack.enter_context(closing(Agent(found.url, node, 2)))
            agents[node].show_gpu(0, 60, count=2)
        allowed = ("python train.py", "<b>echo</b>")
        agents["gn41"] = stack.enter_context(closing(Agent(found.url, "gn41", 1, allowed)))
        yield found


@pytest.fixture(scope="module")
def sessions() -> dict[str, StorageState]:
    """The cookies of who has logged in: logins are limited."""
    return {}


@pytest.fixture
def visit(browser: Browser, server: Lab, sessions: dict[str, StorageState]) -> Iterator[Visit]:
    """Log in and open a page. No page may have errors, whatever was done on it."""
    opened: list[Watched] = []

    def visit(path: str = "/", who: str = "olga", **options: Any) -> Page:
        context = browser.new_context(base_url=server.url, storage_state=sessions.get(who), **options)
        opened.append(Watched(context))
        page = opened[-1].page
        page.goto(path)
        if who not in sessions:
            log_in(page, who, PASSWORDS[who])
            page.wait_for_url(server.url + path)
            sessions[who] = context.storage_state()
        return page

    yield visit
    for one in opened:
        one.page.context.close()
    assert [error for one in opened for error in one.errors] == []
