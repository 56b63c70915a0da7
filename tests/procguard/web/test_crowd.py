"""The pages of 300 nodes with 8 workers each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from platform_launch.procguard.api.shapes.groups import GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.server.gate import SESSION_COOKIE
from platform_launch.sentences import sentence
from tests.lab.browser import Watched, axe_findings, faults, requires_axe
from tests.lab.waiting import until
from tests.procguard.serving import Served, hashed_password, served
from tests.procguard.web.crowd import Crowd, crowd

SLOW = sentence("makes-longer", who="rank 7", percent="9%", step="1.31", usual="1.2")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Crowd]]:
    with served(tmp_path_factory.mktemp("crowd"), new_nodes_per_minute=1000) as server:
        server.parts.accounts.add("ada", UserRole.ADMIN, hashed_password())
        with crowd(server) as found:
            for name, first, nodes in (("large", 0, 64), ("broken", 80, 4)):
                found.group(name, first, nodes, note="an ablation", links=["https://wandb.ai/lab"])
            settings = GroupSettings(command="train", queue_workers=2400, queue_nodes="h100")
            found.control.create_group(NewGroup(name="next", settings=settings), "op")
            found.control.queue("next", "op")
            queries = found.control.queries
            until(lambda: {queries.group(name).phase.value for name in ("large", "broken")} == {"running"})
            report = found.reports["gpu-000"][0]
            found.reports["gpu-000"][0] = report.model_copy(update={"slow_ranks": (SLOW,)})
            found.end("gpu-081-3", 1, "cause: CUDA out of memory")
            until(lambda: queries.group("broken").phase.value == "failed", "the failure")
            yield server, found


@requires_axe
@pytest.mark.parametrize(
    ("scheme", "language", "width"),
    [pytest.param("light", "en", 1440, marks=pytest.mark.nightly), ("dark", "zh", 390)],
)
def test_pages_of_300_nodes_can_be_read_and_used(
    browser: Browser, many: tuple[Served, Crowd], scheme: str, language: str, width: int
) -> None:
    server, _ = many
    context = browser.new_context(
        base_url=server.url,
        color_scheme="dark" if scheme == "dark" else "light",
        locale=language,
        viewport={"width": width, "height": 900},
    )
    context.add_cookies([{"name": SESSION_COOKIE, "value": server.token("ada"), "url": server.url}])
    watched = Watched(context)
    page = watched.page
    for path in ("/", "/nodes?text=h100", "/nodes/gpu-096", "/groups/large", "/groups/large/settings"):
        page.goto(path)
        assert (path, [*faults(page), *axe_findings(page)]) == (path, [])
    page.goto("/groups/large")
    assert "9%" in page.locator("#group .slow").inner_text()
    page.goto("/nodes?text=h100")
    assert "200" in page.locator("#found").inner_text(), "two of three nodes have the label"
    assert watched.errors == []
    context.close()
