"""Debian's Chromium, driven by Playwright, and what every page must keep."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources, util
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.lab.needs import Need
from tests.lab.waiting import LIMIT_S

# The same engine without a browser's window, profiles and extensions: a new context costs a quarter.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
LIMIT_MS = LIMIT_S * 1000
AXE = "axe_playwright_python"  # axe-core, as a Python package carries it
requires_axe = Need("axe-playwright-python", lambda: "" if util.find_spec(AXE) else f"needs {AXE}").mark
requires_chromium = Need("Chromium", lambda: "" if CHROMIUM else "needs chromium").mark

# Texts whose contrast with what is behind them is below 4.5 (WCAG AA), as "ratio text". What is disabled
# or decoration is exempt there as well. Colours come as rgb(…), or color(srgb …) where they were mixed.
_FAINT = """() => {
  const numbers = (colour) => {
    const found = colour.match(/[\\d.]+/g).map(Number);
    if (!colour.startsWith("color")) return found;
    return [...found.slice(0, 3).map((part) => part * 255), found[3] ?? 1];
  };
  const light = ([red, green, blue]) => [red, green, blue]
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = numbers(getComputedStyle(one).backgroundColor);
      if ((colour[3] ?? 1) > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest(":disabled, option")) continue;
    const [one, other] = [light(numbers(getComputedStyle(node).color)), light(behind(node))].sort();
    const ratio = (other + 0.05) / (one + 0.05);
    if (ratio < 4.5) faint.add(`${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return [...faint];
}"""

_CONTROLS = "button, a[href], input:not([type=hidden]), select, textarea"
_NAMELESS = """(controls) => [...document.querySelectorAll(controls)]
  .filter((node) => node.checkVisibility() && !node.labels?.length && !node.ariaLabel)
  .filter((node) => node.tagName === "SELECT" || !node.textContent.trim())
  .map((node) => node.outerHTML.slice(0, 120))"""


# Landmarks that a screen reader lists under the same name.
_TWICE = """() => {
  const name = (node) => node.ariaLabel
    || document.getElementById(node.getAttribute("aria-labelledby"))?.textContent.trim();
  const found = [...document.querySelectorAll("nav, section, [role=region]")]
    .filter((node) => node.checkVisibility() && name(node))
    .map((node) => `${node.tagName === "NAV" ? "nav" : "region"} ${name(node)}`);
  return found.filter((one, index) => found.indexOf(one) !== index);
}"""


@contextmanager
def chromium(program: str | Path | None = CHROMIUM) -> Iterator[Browser]:
    """Run the browser. Meanwhile this thread can run no other, and no asyncio of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page whose errors are kept: scripts' own, and what the content security policy stopped."""

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(LIMIT_MS)
        self.errors: list[str] = []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: ConsoleMessage) -> None:
        # An answer of 4xx, or none, is told there as well: that is for the page to show. A request is aborted
        # where a newer one takes its place.
        answers = ("Failed to load resource", "Response Status Error", "htmx:sendError", "htmx:afterRequest")
        if message.type == "error" and not message.text.startswith((*answers, "htmx:sendAbort")):
            self.errors.append(message.text)


def faults(page: Page) -> list[str]:
    """Return what keeps somebody from reading or using the page as it is now."""
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return [
        *([f"{wide} px wider than the window"] if wide > 0 else []),
        *(f"faint: {text}" for text in page.evaluate(_FAINT)),
        *(f"twice: {one}" for one in page.evaluate(_TWICE)),
        *(f"no name: {html}" for html in page.evaluate(_NAMELESS, _CONTROLS)),
    ]


# Contrast is most of what axe would compute, and `faults` has it of every text.
_AXE = """axe.run(document, {resultTypes: ["violations"], rules: {"color-contrast": {enabled: false}}})"""


def axe_findings(page: Page) -> list[str]:
    """Return what axe finds wrong, contrast aside."""
    page.evaluate(resources.files(AXE).joinpath("axe.min.js").read_text("utf-8"))
    found = page.evaluate(_AXE)["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
