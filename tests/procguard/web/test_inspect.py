"""The button that shows what all ranks do, with a real agent and a real process, by keyboard."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from platform_launch.procguard.api.shapes.groups import GroupSettings
from tests.lab.waiting import until
from tests.procguard.agent_lab import node_in
from tests.procguard.web.lab import JOIN_TOKEN, Lab, Visit

TRAINING = """
import time
def waits_for_a_shard():
    print("begun", flush=True)
    time.sleep(3600)
waits_for_a_shard()
"""


@pytest.mark.nightly
def test_what_ranks_do_is_shown_by_keyboard_in_both_languages(
    visit: Visit, server: Lab, tmp_path: Path
) -> None:
    command = shlex.join((sys.executable, "-c", TRAINING))
    settings = GroupSettings(master_addr="localhost", backend="gloo", command=command, grace_s=5)
    with node_in(tmp_path / "node", "localhost") as node:
        node.start(server.url, token=JOIN_TOKEN)
        until(lambda: server.api.get("workers/localhost-0").is_success, "the agent")
        server.group("stuck", ["localhost-0"], settings)
        until(lambda: server.api.post("groups/stuck/start").is_success, "the start")
        until(lambda: "begun" in server.api.get("workers/localhost-0/log").text, "the training")

        page = visit("/groups/stuck")
        page.get_by_role("button", name="Inspect").focus()
        page.keyboard.press("Enter")

        def seen() -> bool:  # a busy machine may answer after the server's limit
            expect(page.locator("#inspect-again")).to_be_enabled()
            found = "in waits_for_a_shard" in page.locator("#inspect-lines").inner_text()
            if not found:
                page.locator("#inspect-again").press("Enter")
            return found

        until(seen, "the ranks")
        expect(page.locator("#inspect-status")).to_contain_text("Ranks seen: 1; nodes: 1.")
        page.locator("#inspect-more summary").press("Enter")
        expect(page.locator("#inspect-stacks")).to_contain_text("main thread")

        def saved() -> bool:
            with page.expect_download() as download:
                page.get_by_role("button", name="Save all stacks").press("Enter")
            assert download.value.suggested_filename == "stuck-1-stacks.txt"
            return "waits_for_a_shard" in download.value.path().read_text()

        until(saved, "a file of the rank's stacks")
        page.keyboard.press("Escape")
        expect(page.locator("#inspect")).to_be_hidden()

        page.get_by_label("Language").select_option("zh")
        page.get_by_role("button", name="检查").press("Enter")
        expect(page.locator("#inspect-status")).to_contain_text("看到")
        page.get_by_role("button", name="关闭").press("Enter")

        expect(visit("/groups/stuck", "vera").get_by_role("button", name="Inspect")).to_have_count(0)
        server.api.post("groups/stuck/stop")
