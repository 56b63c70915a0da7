from __future__ import annotations

import re
from contextlib import closing
from typing import Literal

import pytest
from playwright.sync_api import expect

from platform_launch.procguard.api.shapes.groups import GroupSettings
from tests.lab.browser import axe_findings, faults, requires_axe
from tests.lab.waiting import until
from tests.procguard.web.lab import PASSWORDS, Agent, Lab, Visit, log_in

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
SIDEWAYS = """[...document.querySelectorAll(".scroll:has(.records, .workers, .events)")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)"""


@pytest.fixture(scope="module")
def failed(server: Lab, agents: dict[str, Agent]) -> str:
    """The name of a group that failed."""
    server.group("broken", ["gn39-0", "gn39-1"], GroupSettings(master_addr="gn39"))
    assert server.api.post("groups/broken/start").is_success
    agent = agents["gn39"]
    until(lambda: agent.reports[1].pid is not None, "the worker runs")
    agent.write(1, b"RuntimeError: CUDA out of memory\x07\n")
    agent.end(1, 1, "cause: CUDA out of memory")
    until(lambda: server.phase("broken") == "failed", "the group failed")
    return "broken"


def test_limited_agents_say_so(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#w-gn41-0 .tag")).to_have_text("limited")
    page.locator("#w-gn41-0 .tag").click()
    expect(page.locator("#node .notice code")).to_have_text(["python train.py", "<b>echo</b>"])


def test_failed_workers_are_found_by_the_word_on_their_badge(visit: Visit, failed: str) -> None:
    page = visit(f"/groups/{failed}")
    expect(page.locator("#w-gn39-1 .badge")).to_have_text("Failed first")
    expect(page.locator("#w-gn39-0 .badge")).to_have_text("Stopped")
    expect(page.locator("#group .counts")).to_have_text(re.compile(r"1\s*Failed first\s*1\s*Stopped"))
    for word, shown in (("failed", ["gn39-1"]), ("failed-first", ["gn39-1"]), ("stopped", ["gn39-0"])):
        page.get_by_label("State").select_option(word)
        expect(page.locator(".workers tbody th")).to_have_text(shown)


def test_a_wrong_address_is_a_page_for_a_browser_and_json_for_a_script(visit: Visit, server: Lab) -> None:
    page = visit("/nowhere")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    answer = server.api.get("/nowhere")
    assert (answer.status_code, answer.json()["error"]) == (404, "Not Found")


def test_viewer_sees_no_controls(visit: Visit, server: Lab) -> None:
    server.group("seen", ["gn40-1"], GroupSettings(master_addr="gn40"))
    page = visit(who="vera")
    for path in ("/", "/groups/seen", "/groups/seen/settings", "/workers/gn40-1/log"):
        page.goto(path)
        changing = page.locator("[hx-post^='/api'], [hx-put], [hx-delete], [data-opens], td.tick")
        assert changing.evaluate_all("all => all.map(one => one.getAttribute('hx-post'))") in (
            ["/api/v1/logout"],
            ["/api/v1/logout", None],  # the settings' form, without a button and disabled
        )
    page.goto("/groups/seen/settings")
    expect(page.get_by_label("Master address")).to_be_disabled()
    assert page.get_by_role("button", name="Save").count() == 0
    expect(page.locator(".ranks tbody tr")).to_have_count(1)


def test_keyboard_alone(visit: Visit) -> None:
    page = visit()
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    press("Enter")
    for _ in range(8):  # the numbers above are links
        press("Tab")
        if page.evaluate("document.activeElement.dataset.opens") == "new-group":
            break
    expect(page.get_by_role("button", name="New group")).to_be_focused()
    press("Enter")
    page.keyboard.type("typed")
    press("Escape")
    expect(page.get_by_role("button", name="New group")).to_be_focused()
    press("Enter")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("by-keys")
    press("Enter")
    expect(page.locator("#group-by-keys")).to_be_visible()
    page.locator("#t-gn40-0").focus()
    press("Space")
    for _ in range(60):
        if page.evaluate("document.activeElement.dataset.opens") == "move":
            break
        press("Tab")
    press("Enter")
    choice = page.locator("#move").get_by_role("button", name="by-keys")
    choice.wait_for()
    expect(page.locator("#move-body button:enabled").first).to_be_focused()  # Enter does not cancel
    for _ in range(20):
        if choice.evaluate("one => one === document.activeElement"):
            break
        press("Tab")
    press("Enter")
    expect(page.locator("#group-by-keys")).to_contain_text("1 worker")


def test_what_has_the_focus_is_kept_up_to_date(visit: Visit, server: Lab) -> None:
    page = visit("/nodes/gn7")
    button, table = page.locator("#drain"), page.get_by_role("group", name="Events")
    for told in ("End the drain", "Drain"):
        button.press("Enter")
        expect(button).to_have_text(told)
        expect(button).to_be_focused()
    rows = table.locator("tbody tr")
    seen = rows.count()
    table.focus()
    assert server.api.put("nodes/gn7/drain", json={"drained": True}).is_success
    expect(rows).to_have_count(seen + 1)
    expect(table).to_be_focused()
    assert server.api.put("nodes/gn7/drain", json={"drained": False}).is_success


def test_chinese(visit: Visit, server: Lab) -> None:
    assert server.api.post("groups", json={"name": "taken"}).is_success
    page = visit(locale="zh-CN")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    page.get_by_role("button", name="新建分组").click()
    page.keyboard.type("taken")
    page.keyboard.press("Enter")
    expect(page.locator("#new-group-error")).to_have_text("已有名为 taken 的分组。 请换一个名称。")
    page.keyboard.press("Escape")
    page.locator("#language").select_option("en")
    expect(page.get_by_role("button", name="New group")).to_be_visible()
    page.goto("/events")
    expect(page.get_by_role("heading", name="Events")).to_be_visible()


@requires_axe
@pytest.mark.parametrize(
    ("scheme", "language", "axe_at"),
    [pytest.param("light", "zh", 1280, marks=pytest.mark.nightly), ("dark", "en", 360)],
)
def test_every_page_can_be_read_and_used(
    visit: Visit, failed: str, scheme: Scheme, language: str, axe_at: int
) -> None:
    page = visit(who="ada", color_scheme=scheme, locale=language)
    for path in (
        "/",
        f"/groups/{failed}",
        f"/groups/{failed}/settings",
        f"/groups/{failed}/log",
        f"/groups/{failed}/charts",
        f"/groups/{failed}/runs",
        f"/groups/{failed}/runs/1",
        f"/groups/{failed}/events",
        "/workers/gn39-1/log",
        "/nodes",
        "/nodes/gn41",
        "/events",
        "/users",
        "/account",
        "/groups/none",
        "/login",
    ):
        page.goto(path)
        page.wait_for_load_state("networkidle" if path == "/login" else "load")
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 800})
            axe = axe_findings(page) if width == axe_at else []
            assert (path, width, [*faults(page), *axe]) == (path, width, [])
        # A row is a card now: nothing of it lies outside the window.
        assert (path, page.evaluate(SIDEWAYS)) == (path, [])
    page.goto("/")
    page.locator("[data-opens='new-group']").click()
    assert faults(page) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_theme_is_chosen_and_given_back(visit: Visit, scheme: Scheme) -> None:
    page = visit(color_scheme=scheme)
    other = {"light": "dark", "dark": "light"}[scheme]
    for chosen in (other, scheme, None, other):
        page.locator("#theme").click()
        if chosen is None:
            expect(page.locator("html")).not_to_have_attribute("data-theme", re.compile("."))
        else:
            expect(page.locator("html")).to_have_attribute("data-theme", chosen)
    assert faults(page) == []


def test_long_names_of_nodes_leave_room_for_the_other_columns(visit: Visit, server: Lab) -> None:
    long = "a-node-whose-name-tells-its-cluster-rack-and-number"
    with closing(Agent(server.url, long, 1)):
        for path, table in (("/", ".workers"), ("/nodes", ".nodes")):
            page = visit(path, viewport={"width": 1366, "height": 768})
            expect(page.locator(table).get_by_text(long).first).to_be_visible()
            hidden = page.locator(f".scroll:has({table})").evaluate(
                "one => one.scrollWidth - one.clientWidth"
            )
            assert hidden <= 0, path
        server.api.delete(f"nodes/{long}")


def test_a_change_in_an_ended_session_leads_back_to_its_page(visit: Visit, server: Lab) -> None:
    page = visit("/account")
    # What the page listens to is under way with the cookies: else it, not the change, may be what is refused.
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.context.clear_cookies()
    page.get_by_label("What it is for").fill("nightly")
    page.get_by_role("button", name="Create token").click()
    expect(page.locator("main")).to_contain_text("Your session has ended")
    log_in(page, "olga", PASSWORDS["olga"])
    expect(page).to_have_url(f"{server.url}/account")
