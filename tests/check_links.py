"""Check that every relative link and heading anchor in the project's Markdown files leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)
ANCHOR = re.compile(r"<a id=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    headings = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in headings} | set(ANCHOR.findall(text))


def broken_links(page: Path) -> list[str]:
    """Return a line for each link of ``page`` that leads nowhere."""
    text = page.read_text(encoding="utf-8")
    problems = []
    for match in LINK.finditer(FENCE.sub("", text)):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            problems.append(f"{page.relative_to(ROOT)}: {target}: no such file")
        elif ROOT / "tests" in file.parents and ROOT / "tests" not in page.parents:
            problems.append(f"{page.relative_to(ROOT)}: {target}: not on the site: write the path as code")
        elif anchor and anchor not in anchors(FENCE.sub("", file.read_text(encoding="utf-8"))):
            problems.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    return problems


def main() -> int:
    """Check every tracked Markdown file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    problems = [problem for name in listed for problem in broken_links(ROOT / name)]
    print("\n".join(problems) or f"{len(listed)} Markdown files: every relative link leads somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
