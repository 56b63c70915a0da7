from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route, expect

from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.api.wire import WorkerState
from tests.lab.waiting import until
from tests.procguard.web.lab import Agent, Lab, Visit, badge

HOSTILE = (
    b"\x1b[31mred\x1b[0m <script>document.title='owned'</script><img src=x onerror=alert(1)> "
    b"\x1b]0;title\x07 \xe2\x80\xaeturned \xff\n"
)


def click_twice(page: Page, button: str, fetches: str) -> int:
    """Click as an impatient person does; return how often what is wanted was asked for."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name=button).evaluate("(one) => { one.click(); one.click(); }")
    until(lambda: page.evaluate("0") == 0 and asked)
    return sum(fetches in url for url in asked)


@contextmanager
def late(page: Page, pattern: str, ask: Callable[[], object], **answer: Any) -> Iterator[None]:
    """Ask for what only comes once the block has ended, the server's answer or another, and is seen then."""
    held: list[Route] = []
    page.route(re.compile(pattern), lambda route: held.append(route))
    ask()
    until(lambda: page.evaluate("0") == 0 and held)
    yield
    with page.expect_event("requestfinished"):
        held[0].fulfill(**answer) if answer else held[0].continue_()
    page.unroute(re.compile(pattern))
    page.evaluate("() => new Promise((seen) => setTimeout(seen, 100))")


def test_what_comes_late_does_not_take_the_place_of_what_was_asked_for_since(
    visit: Visit, server: Lab, agents: dict[str, Agent]
) -> None:
    server.group("late", ["gn40-1"], GroupSettings(master_addr="gn40"))
    agent = agents["gn40"]
    for number in (1, 2):
        assert server.api.post("groups/late/start").is_success
        until(lambda: agent.reports[1].state is WorkerState.RUNNING, "the worker runs")
        agent.write(1, b"run %d\n" % number)
        agent.end(1, 3)
        until(lambda: server.phase("late") == "failed", "the group has failed")
    page = visit("/workers/gn40-1/log")
    expect(page.locator("#log-lines .line")).to_have_text("1run 2")
    first, second = (
        page.get_by_label("Run")
        .locator("option")
        .evaluate_all("(all) => all.map((one) => one.value).reverse()")
    )
    with late(page, rf"generation={first}$", lambda: page.get_by_label("Run").select_option(first)):
        page.get_by_label("Run").select_option(second)
        expect(page.locator("#log-lines .line")).to_have_text("1run 2")
    assert page.locator("#log-lines .line").all_text_contents() == ["1run 2"]

    page.goto("/groups/late/charts")
    status = page.locator(".chart-status")
    expect(status).not_to_have_text("Loading…")
    shown = page.locator(".charts").inner_text()
    days = {"times": [0, 60, 120], "series": {"gpu_lowest": [10, 20, 30]}}
    click = page.locator("[data-span=days]").click
    with late(page, "span=days", click, json=days), page.expect_response(re.compile("/ranks$")):
        page.locator("[data-span=hour]").click()
    assert page.locator(".charts").inner_text() == shown
    page.route(re.compile("span=days"), lambda route: route.fulfill(json=days))
    click()
    expect(status).to_have_text("")


def test_why_a_group_failed_and_its_log(visit: Visit, server: Lab, agents: dict[str, Agent]) -> None:
    server.group("broken", ["gn39-0", "gn39-1"], GroupSettings(master_addr="gn39"))
    assert server.api.post("groups/broken/start").is_success
    until(lambda: server.phase("broken") == "running", "the group runs")
    agent = agents["gn39"]
    until(lambda: agent.reports[1].pid is not None, "the worker runs")
    agent.write(1, b"".join(b"step %d loss 0.5\n" % number for number in range(1, 301)) + HOSTILE)

    page = visit("/workers/gn39-1/log")
    lines = page.locator("#log-lines .line")
    expect(lines).to_have_count(301)
    expect(page.locator("[data-line='301']")).to_contain_text("<script>document.title='owned'</script><img")
    shown = page.locator("[data-line='301'] span").first.inner_text()
    assert "[31m" not in shown
    assert "ESC]0;titleBEL" in shown
    assert "U+202Eturned" in shown
    expect(page).to_have_title("Log of gn39-1 · ProcGuard")
    assert page.locator("#log-lines script, #log-lines img").count() == 0

    agent.write(1, b"10%\r20%\r")
    agent.write(1, b"30%\nRuntimeError: CUDA out of")
    expect(lines.last).to_contain_text("303RuntimeError: CUDA out of")
    agent.write(1, b" memory\n")
    expect(lines.last).to_contain_text("303RuntimeError: CUDA out of memory")
    expect(page.locator("[data-line='302']")).to_have_text(["30210%", "20%", "30%"])

    page.get_by_role("button", name="Follow").click()
    agent.write(1, b"while paused\n")
    page.get_by_placeholder("Search the log").fill("step 2 LOSS")
    expect(page.locator("#log-status")).to_have_text("1 line matches")
    expect(page.locator("#log-lines mark")).to_have_text("step 2 loss")
    page.get_by_placeholder("Search the log").fill("<img")
    page.locator(".line a:visible", has_text="301").click()
    expect(page.locator(".line.target mark")).to_have_text("<img")
    expect(page.locator("#log-lines")).to_be_focused()
    page.get_by_role("button", name="Newest lines").click()
    expect(lines.last).to_contain_text("while paused")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_bytes().count(HOSTILE) == 1

    agent.end(1, 1, "cause: <u>CUDA out of memory</u>\nfix: halve the micro batch")
    expect(page.locator("#worker .badge")).to_have_text("Failed first")
    page.goto("/")
    expect(badge(page, "broken")).to_have_text("Failed")
    expect(page.locator("#group-broken .failure")).to_contain_text(
        "gn39-1 failed first: ended with exit code 1"
    )
    page.goto("/groups/broken")
    expect(page.locator(".verdict")).to_contain_text("<u>CUDA out of memory</u>")
    page.get_by_role("link", name="Read the log of gn39-1").click()
    expect(page.locator("#log-lines .line").last).to_contain_text("while paused")

    assert server.api.post("groups/broken/start").is_success
    until(lambda: agent.reports[1].state.value == "running", "the worker runs again")
    agent.write(1, b"the second run\n")
    page.goto("/workers/gn39-1/log")
    expect(lines.last).to_contain_text("the second run")
    page.get_by_label("Run").select_option("1")
    expect(lines.last).to_contain_text("while paused")

    agent.write(1, b"".join(b"step %d\n" % number for number in range(2, 1501)))
    page.goto("/workers/gn39-1/log")
    expect(lines).to_have_count(500)
    assert click_twice(page, "Load older lines", "before=") == 1
    expect(lines).to_have_count(1000)
    page.get_by_role("button", name="Load older lines").click()
    expect(lines.first).to_contain_text("the second run")
    expect(lines).to_have_count(1500)


def test_the_log_of_a_group(visit: Visit, server: Lab, agents: dict[str, Agent]) -> None:
    server.group("merged", ["gn6-0", "gn7-0"], GroupSettings(master_addr="gn6"))
    assert server.api.post("groups/merged/start").is_success
    first, second = agents["gn6"], agents["gn7"]
    until(lambda: all(one.reports[0].pid is not None for one in (first, second)), "both run")

    def arrives(agent: Agent, text: bytes, so_far: int) -> None:
        agent.write(0, text)
        read = "groups/merged/log?limit=5000"
        until(lambda: len(server.api.get(read).json()["lines"]) == so_far, "the server has the lines")
        time.sleep(0.6)  # marks of time are half a second apart

    arrives(first, b"\x1b[1;31mred\x1b[0m begin\n" + b"".join(b"step %d\n" % n for n in range(1, 701)), 701)
    arrives(second, b"rank one\nRuntimeError: out of memory\nthe end\n", 704)
    arrives(first, b"ConnectionError: peer has gone\n", 705)

    page = visit("/groups/merged/log")
    lines = page.locator("#log-lines .line")
    expect(lines.last).to_contain_text("ConnectionError: peer has gone")
    expect(lines.nth(-2)).to_contain_text("1 · gn7-0the end")
    assert click_twice(page, "Load older lines", "before=") == 1
    expect(lines.first.locator(".strong.ink1")).to_have_text("red")
    expect(lines).to_have_count(705)
    page.get_by_label("Errors only").check()
    expect(page.locator("#log-status")).to_have_text("2 lines match")
    expect(lines).to_contain_text(["RuntimeError", "ConnectionError"])
    page.get_by_label("Context").select_option("2")
    expect(page.locator(".line.beside")).to_contain_text(["rank one", "the end"])
    page.get_by_label("Errors only").uncheck()
    page.get_by_label("Regular expression").check()
    page.get_by_placeholder("Search the log").fill("^step 69[89]$")
    expect(page.locator("#log-lines mark")).to_have_text(["step 698", "step 699"])
    page.get_by_placeholder("Search the log").fill("step (")
    expect(page.locator("#log-status")).to_contain_text("Not a valid regular expression")
    page.get_by_placeholder("Search the log").fill("")
    page.get_by_label("Ranks", exact=True).fill("1")
    expect(lines).to_have_count(3)

    second.end(0, 1, "cause: memory", cause_line=2)
    until(lambda: server.phase("merged") == "failed", "the group has failed")
    until(lambda: bool(server.api.get("groups/merged").json()["failure"]["line"]), "its line is known")
    page.goto("/groups/merged/log")
    page.get_by_role("button", name="Go to the cause").click()
    expect(page.locator(".line.target")).to_contain_text("RuntimeError: out of memory")
    page.locator(".line.target a").click()
    expect(page.locator(".line.target")).to_have_text("2RuntimeError: out of memory")
    expect(page).to_have_url(re.compile(r"/workers/gn7-0/log\?generation=\d+#L2$"))
    page.get_by_role("link", name="Rank 0").click()
    page.goto(page.url + "#L500")
    page.reload()
    expect(page.locator(".line.target")).to_have_text("500step 499")
    page.get_by_role("link", name="Rank 1").click()
    expect(lines.first).to_contain_text("rank one")


def test_a_search_shows_how_far_it_is_stops_when_told_and_says_none_only_at_the_end(
    visit: Visit, server: Lab, agents: dict[str, Agent]
) -> None:
    server.group("long", ["gn40-0"], GroupSettings(master_addr="gn40"))
    assert server.api.post("groups/long/start").is_success
    until(lambda: agents["gn40"].reports[0].state is WorkerState.RUNNING, "the worker runs")
    agents["gn40"].write(0, b"step 1\nstep 2\n")
    agents["gn40"].end(0, 1)
    until(lambda: server.phase("long") == "failed", "the group has failed")
    page = visit("/groups/long/log")
    expect(page.locator("#log-lines .line")).to_have_count(2)
    held: list[Route] = []
    page.route(re.compile("errors=true|search="), lambda route: held.append(route))

    def answer(read: int, *lines: str) -> None:
        until(lambda: page.evaluate("0") == 0 and held, "the page to ask")
        place = f"{read}-0-{read}"
        shown = [
            {"rank": 0, "worker": "gn40-0", "at": 0, "offset": 0, "text": text, "match": True, "place": place}
            for text in lines
        ]
        about = {"group": "long", "run": 1, "generation": 1, "ended": True, "before": None, "target": None}
        more = read < 100
        held.pop().fulfill(
            json={**about, "lines": shown, "after": place, "more": more, "read": read, "size": 100}
        )

    page.get_by_label("Errors only").check()
    status, none = page.locator("#log-status"), page.locator("#log-empty")
    answer(30)
    expect(status).to_have_text("Searching… 30 %")
    expect(page.locator("#log-lines .line")).to_have_count(0)
    expect(none).to_be_hidden()
    answer(100)
    expect(none).to_have_text("No line looks like an error.")
    page.get_by_placeholder("Search the log").fill("step")
    answer(40, "RuntimeError: step")
    expect(page.locator("#log-lines mark")).to_have_text("step")
    page.get_by_role("button", name="Stop", exact=True).last.click()
    answer(70)
    expect(status).to_have_text("Stopped at 70 %; the matches so far are shown.")
    page.get_by_placeholder("Search the log").fill("nothing")
    expect(page.locator("#log-lines .line")).to_have_count(0)  # not those of another search
    answer(50)
    page.get_by_role("button", name="Stop", exact=True).last.click()
    answer(60)
    expect(none).to_be_hidden()
    page.get_by_role("button", name="Continue search").click()
    answer(100)
    expect(none).to_have_text("No line contains “nothing”.")
