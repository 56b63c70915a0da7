"""ProcGuard as a site has it: a server on one host, an agent on each node, a browser beside the server."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.lab.browser import CHROMIUM, chromium
from tests.lab.netns import Host, hosts
from tests.lab.waiting import LIMIT_S

PROGRAM = (sys.executable, "-m", "platform_launch", "procguard")
SERVER = "http://server:8765"


@dataclass
class Site:
    """Hosts whose agents work in folders of their own, ``nodes`` by name."""

    nodes: dict[str, Path]
    browser: Browser
    password: str

    @contextmanager
    def operator(self) -> Iterator[Page]:
        """Let somebody log in, and give the page."""
        context = self.browser.new_context(base_url=SERVER)
        context.set_default_timeout(LIMIT_S * 1000)
        try:
            page = context.new_page()
            page.goto("/")
            page.get_by_label("Name").fill("admin")
            page.get_by_label("Password").fill(self.password)
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="Groups", exact=True).wait_for()
            yield page
        finally:
            context.close()


@contextmanager
def site(names: Sequence[str], folder: Path) -> Iterator[Site]:
    """Give a site with two workers on each node, and take all of it away again."""
    token = {"PROCGUARD_JOIN_TOKEN": secrets.token_hex(16), "OMP_NUM_THREADS": "1"}
    serve = (*PROGRAM, "server", "--listen", "0.0.0.0:8765", "--data", str(folder / "data"))
    join = (*PROGRAM, "agent", "--server", SERVER, "--workers", "2")
    places = {name: folder / name for name in names}
    running: list[subprocess.Popen[str]] = []
    with hosts([*names, "server"]) as (*nodes, server), (folder / "said").open("w+") as said:
        try:
            running.append(server.popen(serve, env=token, stdout=said))
            for node in nodes:
                place = places[node.name]
                place.mkdir()
                own = ("--directory", str(place), "--state", str(place / "state"))
                running.append(node.popen((*join, *own), env=token, stdout=said))
            _wait_for("on each node, with the join token", folder / "said", running)
            password = (folder / "data" / "initial-password").read_text().strip()
            with _browser_on(server, folder) as browser:
                yield Site(places, browser, password)
        except BaseException:
            print((folder / "said").read_text())
            raise
        finally:
            for process in running:
                process.kill()
                process.wait()


@contextmanager
def _browser_on(host: Host, folder: Path) -> Iterator[Browser]:
    """Run Chromium on a host, driven from here through its pipes."""
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec ip netns exec {host.namespace} {CHROMIUM} "$@"\n')
    program.chmod(0o755)
    with chromium(program) as browser:
        yield browser


def _wait_for(text: str, said: Path, running: Sequence[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while text not in said.read_text():
        assert time.monotonic() < deadline, f"never said {text!r}"
        assert all(process.poll() is None for process in running), "one of them ended"
        time.sleep(0.1)
