from __future__ import annotations

import re
from contextlib import closing

from playwright.sync_api import Browser, Dialog, Route, expect

from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.api.wire import QuarantineReport
from tests.lab.browser import Watched
from tests.lab.waiting import until
from tests.procguard.web.lab import PASSWORDS, Agent, Lab, Visit, badge, log_in


def test_wrong_password_is_said(browser: Browser, server: Lab) -> None:
    with closing(browser.new_context(base_url=server.url)) as context:
        page = Watched(context).page
        page.goto("/login?next=https://evil.example/")
        log_in(page, "olga", "not this one")
        expect(page.get_by_role("alert")).to_contain_text("Wrong user name or password")
        log_in(page, "olga", PASSWORDS["olga"])
        page.wait_for_url(server.url + "/")


def test_from_ticking_workers_to_a_running_group(visit: Visit, agents: dict[str, Agent]) -> None:
    page = visit()
    page.evaluate("window.sameDocument = true")
    page.get_by_role("button", name="New group").click()
    page.get_by_label("Name of the group").fill("flow")
    page.get_by_role("button", name="Create group").click()
    expect(page.locator("#group-flow")).to_contain_text("No workers in this group")

    page.get_by_placeholder("Filter by name").fill("gn")
    page.locator("#t-gn6-0").click()
    page.locator("#t-gn7-1").click(modifiers=["Shift"])
    expect(page.locator("#selected-count")).to_have_text("4 selected")
    page.get_by_role("button", name="Move to…").click()
    page.locator("#move").get_by_role("button", name="flow").click()
    expect(page.locator("#group-flow")).to_contain_text("4 workers")
    expect(page.locator("#w-gn7-1")).to_contain_text("flow")
    expect(page.locator("#selection")).to_be_hidden()
    assert page.evaluate("window.sameDocument")

    page.locator("#group-flow").get_by_role("link", name="Settings").click()
    expect(page.get_by_label("World Size")).to_have_attribute("placeholder", "4")
    expect(page.get_by_label("Master port")).to_have_value("29500")
    expect(page.locator("[data-code=no-master]")).to_contain_text("such as gn6")
    page.get_by_label("Master address").fill("gn7-0")
    expect(page.locator("[data-code=master-is-worker]")).to_contain_text("Enter gn7")
    page.get_by_label("Master address").fill("gn7")
    ranks = page.locator(".ranks tbody tr")
    expect(ranks).to_have_text(
        [
            re.compile(rf"{rank}\s*{worker}")
            for rank, worker in enumerate(("gn7-0", "gn7-1", "gn6-0", "gn6-1"))
        ]
    )
    page.get_by_label("World Size").fill("9")
    expect(page.locator("[data-code=world-size-above]")).to_contain_text("Add 5 more")
    page.get_by_label("World Size").fill("3")
    expect(page.locator("[data-code=world-size-below]")).to_contain_text("gn6-1")
    page.get_by_label("World Size").fill("")
    page.get_by_label("Master port").fill("70000")
    expect(page.locator("#ranks .problem")).to_contain_text("Master port")
    page.get_by_label("Master port").fill("29511")
    page.get_by_label("Backend").select_option("gloo")
    page.get_by_text("Environment of gn7-0").click()
    expect(page.locator("#environment")).to_contain_text("MASTER_PORT=29511")
    expect(page.locator("#unsaved")).to_be_visible()
    page.get_by_role("button", name="Save settings").click()
    expect(page.locator("#notices")).to_contain_text("Settings saved")
    expect(page.locator("#unsaved")).to_be_hidden()
    page.reload()
    expect(page.get_by_label("Master address")).to_have_value("gn7")
    expect(page.get_by_label("World Size")).to_have_value("")
    page.get_by_role("link", name="Workers", exact=True).click()

    page.evaluate("window.sameDocument = true")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#group .badge")).to_have_text("Running")
    expect(page.locator("#w-gn7-0 td").nth(3)).to_have_text("0")
    expect(page.locator("#w-gn6-1 td").nth(3)).to_have_text("3")
    expect(page.locator(".workers tbody tr")).to_contain_text(["gn7-0", "gn7-1", "gn6-0", "gn6-1"])
    expect(page.locator("#w-gn6-0")).to_contain_text("2× 60 % 84/160 GiB")
    agents["gn6"].show_gpu(0, 90)
    expect(page.locator("#w-gn6-0")).to_contain_text("90 % 63/80 GiB")

    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#confirm")).to_contain_text("This stops flow on all of its 4 workers")
    page.locator("#confirm").get_by_role("button", name="Cancel").click()
    expect(page.locator("#group .badge")).to_have_text("Running")
    page.get_by_role("button", name="Stop").click()
    page.locator("#confirm").get_by_role("button", name="Stop").click()
    expect(page.locator("#group .badge")).to_have_text("Stopped")
    assert page.evaluate("window.sameDocument")
    page.goto("/events")
    expect(page.locator(".events tbody tr").filter(has_text="stop requested").first).to_contain_text("olga")


def test_a_start_asks_what_to_do_with_settings_that_are_not_saved(visit: Visit, server: Lab) -> None:
    server.group("typed", ["gn40-0"], GroupSettings(command="train"))
    page = visit("/groups/typed/settings")
    page.get_by_label("Master address").fill("gn40")
    page.get_by_role("button", name="Start", exact=True).click()
    dialog = page.locator("#unsaved-start")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator("#group .badge")).to_have_text("Idle")
    page.get_by_role("button", name="Start", exact=True).click()
    dialog.get_by_role("button", name="Start as saved").click()
    expect(page.locator("#notices")).to_contain_text("No Master address is set")
    page.get_by_role("button", name="Start", exact=True).click()
    dialog.get_by_role("button", name="Save and start").click()
    expect(page.locator("#group .badge")).to_have_text("Running")
    assert server.api.get("groups/typed").json()["settings"]["master_addr"] == "gn40"

    page.get_by_label("World Size").fill("1")
    asked: list[str] = []

    def answer(asking: Dialog) -> None:
        asked.append(asking.type)
        asking.accept()

    page.on("dialog", answer)
    page.goto("/")
    assert asked == ["beforeunload"]
    assert server.api.post("groups/typed/stop").is_success
    until(lambda: server.phase("typed") == "stopped", "the group has stopped")


def test_refused_start_says_every_problem(visit: Visit, server: Lab) -> None:
    server.group("unfit", ["gn40-0"], GroupSettings(master_addr="gn99", world_size=7))
    page = visit()
    page.locator("#group-unfit").get_by_role("button", name="Start").click()
    expect(page.locator("#notices")).to_contain_text("gn99 is not a node of this group")
    expect(page.locator("#notices")).to_contain_text("World Size is 7")
    page.locator("#group-unfit").get_by_role("link", name="unfit").click()
    beside = visit("/groups/unfit")
    page.get_by_role("button", name="Delete").click()
    page.locator("#confirm").get_by_role("button", name="Delete").click()
    page.wait_for_url(server.url + "/")
    expect(page.locator("#group-unfit")).to_have_count(0)
    expect(beside.get_by_role("heading", name="Not found")).to_be_visible()


def test_an_action_does_not_wait_for_the_pages_own_refreshes(visit: Visit, server: Lab) -> None:
    """They follow each other, the last one only: an action among them was dropped by the next refresh."""
    server.group("hasty", [], GroupSettings())
    page = visit("/groups/hasty")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    held: list[Route] = []
    page.route(
        "**/fragments/groups/hasty", lambda route: held.append(route) if not held else route.continue_()
    )
    page.evaluate("htmx.trigger(document.body, 'changed')")
    while not held:
        page.wait_for_timeout(20)
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#confirm")).to_be_visible()
    page.evaluate("document.querySelector('#confirm-ok').click(); htmx.trigger(document.body, 'changed')")
    held[0].continue_()
    page.wait_for_url(server.url + "/")


def test_many_groups_are_a_table_those_that_failed_first(
    visit: Visit, server: Lab, agents: dict[str, Agent]
) -> None:
    for number in range(14):
        server.group(f"many-{number}", [], GroupSettings())
    server.group("many-failed", ["gn40-1"], GroupSettings(master_addr="gn40"))
    assert server.api.post("groups/many-failed/start").is_success
    until(lambda: agents["gn40"].reports[1].pid is not None, "the worker runs")
    agents["gn40"].end(1, 3)
    until(lambda: server.phase("many-failed") == "failed", "it has failed")
    page = visit()
    expect(page.locator(".groups tbody th").first).to_have_text("many-failed")
    names = [name for name in page.locator(".groups tbody th").all_inner_texts() if name.startswith("many-")]
    assert names == ["many-failed", *(f"many-{number}" for number in range(14))], "2 before 10"
    expect(page.locator("#totals")).to_contain_text("1 Failed first")
    page.locator("#totals").get_by_role("link", name="Failed first").click()
    expect(page.locator(".workers tbody th")).to_have_text(["gn40-1"])
    for name in names:
        assert server.api.delete(f"groups/{name}").is_success


def test_nodes_are_found_drained_and_given_back(visit: Visit, server: Lab) -> None:
    page = visit("/nodes")
    expect(page.locator(".nodes tbody th")).to_contain_text(["gn6", "gn7", "gn39", "gn40", "gn41"])
    page.get_by_placeholder("Filter by name").fill("gn4")
    expect(page.locator(".nodes tbody th")).to_contain_text(["gn40", "gn41"])
    page.get_by_role("link", name="gn41").click()
    page.get_by_role("button", name="Drain").click()
    expect(page.locator("#node .notice").first).to_contain_text("Drained by olga")
    page.goto("/nodes?state=drained")
    expect(page.locator(".nodes tbody th")).to_have_count(1)
    page.get_by_role("link", name="gn41").click()
    page.get_by_role("button", name="End the drain").click()
    expect(page.locator("#node .badge").first).to_have_text("Free")
    expect(page.locator(".events tbody tr").first).to_contain_text("drain ended")


def test_nothing_can_be_clicked_or_sent_before_the_scripts_ran(browser: Browser, server: Lab) -> None:
    with closing(browser.new_context(base_url=server.url)) as context:
        page = Watched(context).page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.route("**/vendor/htmx*", lambda _: None)  # held until it is unrouted
        page.goto("/login", wait_until="commit")
        button = page.locator("form button")
        button.wait_for()
        place = button.bounding_box()
        assert place is not None
        for name in ("name", "password"):
            page.locator(f"[name={name}]").evaluate("(field) => { field.value = 'filled by the browser'; }")
        page.mouse.click(place["x"] + 5, place["y"] + 5)
        page.keyboard.press("Enter")
        page.unroute("**/vendor/htmx*")
        expect(page.locator("main")).to_have_js_property("inert", False)
        expect(page.locator("[name=name]")).to_be_focused()
        log_in(page, "olga", PASSWORDS["olga"])
        page.wait_for_url(server.url + "/")
        expect(page.locator("[inert]")).to_have_count(0)
        assert not [url for url in asked if "password" in url]


def test_a_page_whose_scripts_do_not_come_says_so(browser: Browser, server: Lab) -> None:
    with closing(browser.new_context(base_url=server.url, reduced_motion="reduce")) as context:
        page = Watched(context).page
        page.route("**/page.js*", lambda _: None)  # held until it is unrouted
        page.goto("/login", wait_until="commit")
        late = page.get_by_text("have not loaded")
        expect(late).to_be_hidden()
        expect(late).to_be_visible()
        page.unroute("**/page.js*")
        page.goto("/login")
        expect(page.locator("main")).to_have_js_property("inert", False)
        expect(late).to_be_hidden()


def test_a_node_in_quarantine_is_seen_and_released(visit: Visit, server: Lab) -> None:
    with closing(Agent(server.url, "bad1", 1)) as agent:
        server.group("held", ["bad1-0"], GroupSettings(master_addr="bad1", command="train"))
        agent.quarantine = QuarantineReport(name="bad1", since=5, reason="GPU 3: XID 79 [gpu-xid]", job="j7")
        page = visit("/groups/held")
        expect(page.locator("#group .waiting")).to_contain_text("bad1 is in quarantine")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_text("release the node").first).to_be_visible()
        page.goto("/nodes?state=quarantined")
        expect(page.locator(".nodes tbody tr")).to_contain_text(["GPU 3: XID 79 [gpu-xid]"])
        page.get_by_role("link", name="bad1").click()
        expect(page.locator("#quarantine")).to_contain_text("(found by job j7)")
        page.get_by_role("button", name="Release").click()
        page.get_by_role("dialog").get_by_role("button", name="Release").click()
        expect(page.locator("#node .badge").first).to_have_text("Free")
        expect(page.locator("#quarantine")).to_have_count(0)
        assert server.api.delete("groups/held").is_success


def test_many_workers_are_paged_and_ticked_together(visit: Visit, server: Lab) -> None:
    with closing(Agent(server.url, "wide1", 64)), closing(Agent(server.url, "wide2", 64)):
        page = visit("/?text=wide")
        expect(page.locator(".workers tbody tr")).to_have_count(100)
        expect(page.locator("#found")).to_have_text("1–100 of 128")
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".workers tbody tr")).to_have_count(28)
        page.wait_for_url(re.compile("page=2"))
        page.locator("#tick-all").click()
        expect(page.locator("#selected-count")).to_have_text("128 selected")
        page.get_by_placeholder("Filter by name").fill("wide2-6")
        expect(page.locator("#found")).to_have_text("1–5 of 5")
        page.locator("#tick-all").click()
        expect(page.locator("#selected-count")).to_have_text("123 selected")
        page.get_by_label("State").select_option("lost")
        expect(page.get_by_text("No worker matches")).to_be_visible()
        page.get_by_role("button", name="Clear the filter").click()
        expect(page.locator("#found")).to_contain_text("1–100 of")


def test_a_server_that_goes_and_comes_back(visit: Visit, server: Lab) -> None:
    server.group("seen", ["gn40-1"], GroupSettings(master_addr="gn40"))
    page = visit()
    expect(page.locator("#live")).to_have_text("Live")
    page.evaluate("window.sameDocument = true")
    server.stop()
    expect(page.locator("#live")).to_have_text("Disconnected")
    expect(page.locator("#offline")).to_contain_text("No connection to the server.")
    page.locator("#group-seen").get_by_role("button", name="Start").click()
    expect(page.locator("#notices")).to_contain_text("could not be reached")
    server.start()
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#offline")).to_be_hidden()
    page.locator("#group-seen").get_by_role("button", name="Start").click()
    expect(badge(page, "seen")).to_have_text("Running")
    assert page.evaluate("window.sameDocument")


def test_the_history_of_a_group(visit: Visit, server: Lab, agents: dict[str, Agent]) -> None:
    server.group("told", ["gn40-0"], GroupSettings(master_addr="gn40"))
    page = visit("/groups/told/runs")
    expect(page.get_by_text("This group has not run yet")).to_be_visible()
    for code in (3, 0):
        assert server.api.post("groups/told/start").is_success
        until(lambda: server.phase("told") == "running", "it runs")
        until(lambda: agents["gn40"].reports[0].pid is not None, "the worker runs")
        agents["gn40"].end(0, code, "cause: out of memory" if code else "")
        until(lambda: server.phase("told") in ("failed", "finished"), "it has ended")
        settings = server.api.get("groups/told").json()["settings"]
        server.api.put("groups/told/settings", json={**settings, "master_port": 29600})
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("Finished")
    expect(rows.nth(1)).to_contain_text("gn40-0 ended with exit code 3")
    page.locator("#c-1").click()
    page.locator("#c-2").click()
    page.get_by_role("button", name="Compare two runs").click()
    expect(page.locator(".differs")).to_have_text(re.compile(r"Master port\s*29500\s*29600"))
    page.get_by_role("link", name="Run 1").click()
    expect(page.locator(".verdict")).to_have_text("cause: out of memory")
    page.get_by_role("button", name="Use these settings").click()
    page.locator("#confirm").get_by_role("button", name="Use these settings").click()
    expect(page.locator("#notices")).to_contain_text("Settings saved")
    assert server.api.get("groups/told").json()["settings"]["master_port"] == 29500
    page.locator(".ranks").get_by_role("link", name="gn40-0").click()
    expect(page.locator("#log-empty")).to_have_text("This worker has no log yet.")

    page.goto("/groups/told")
    page.get_by_role("button", name="Duplicate").click()
    page.get_by_label("Name of the group").fill("told-again")
    page.get_by_role("button", name="Create group").click()
    page.wait_for_url("**/groups/told-again")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_label("Master port")).to_have_value("29500")
    variables = page.get_by_label("Variables")
    variables.fill("NCCL_DEBUG=INFO\nno value")
    page.get_by_role("button", name="Save settings").click()
    assert "no value: expected NAME=value" in variables.evaluate("one => one.validationMessage")
    variables.fill("NCCL_DEBUG=INFO\nA=b=c")
    page.get_by_role("button", name="Save settings").click()
    expect(page.locator("#notices")).to_contain_text("Settings saved")
    saved = server.api.get("groups/told-again").json()["settings"]["environment"]
    assert saved == {"NCCL_DEBUG": "INFO", "A": "b=c"}
    page.goto("/groups/told/events")
    expect(page.locator(".events tbody tr").first).to_contain_text("told")
    for name in ("told", "told-again"):
        assert server.api.delete(f"groups/{name}").is_success


def test_users_ones_own_password_and_a_token(visit: Visit, server: Lab, browser: Browser) -> None:
    page = visit("/users", "ada")
    page.get_by_role("button", name="New user").click()
    dialog = page.locator("#new-user")
    dialog.get_by_label("Name").fill("nora")
    dialog.get_by_label("Role").select_option("operator")
    dialog.get_by_label("Password").fill("the first one")
    dialog.get_by_role("button", name="Add user").click()
    expect(page.locator("#u-nora")).to_be_visible()
    page.get_by_label("Role of nora").select_option("viewer")
    expect(page.locator("#notices")).to_contain_text("sessions have ended")
    page.reload()
    expect(page.get_by_label("Role of nora")).to_have_value("viewer")

    with closing(browser.new_context(base_url=server.url)) as context:
        own = Watched(context).page
        own.goto("/account")
        log_in(own, "nora", "the first one")
        expect(own.get_by_role("link", name="Users")).to_have_count(0)
        own.get_by_label("What it is for").fill("nightly")
        own.get_by_role("button", name="Create token").click()
        expect(own.locator("#new-token code")).to_have_text(re.compile("^pgt_"))
        own.get_by_label("Current password").fill("the first one")
        own.get_by_label("New password").fill("the second one")
        own.get_by_role("button", name="Set password").click()
        expect(own.locator("#notices")).to_contain_text("The password is changed")
        own.reload()
        expect(own.locator(".tokens tbody th")).to_have_text("nightly")

    page.locator("#u-nora").get_by_role("button", name="Remove").click()
    page.locator("#confirm").get_by_role("button", name="Remove").click()
    expect(page.locator("#u-nora")).to_have_count(0)
