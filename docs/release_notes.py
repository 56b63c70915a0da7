"""Print the section of CHANGELOG.md that a tag releases: ``python docs/release_notes.py v0.1.0``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(tag: str, changelog: str) -> str:
    """Return the text below the heading of a version. Raises ValueError where there is none."""
    version = tag.removeprefix("v")
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if heading.split()[0] == version:
            if not text.strip():
                raise ValueError(f"CHANGELOG.md says nothing of {version}")
            return text.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no section {version}: expected a heading '## {version}'")


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    except ValueError as error:
        sys.exit(f"error: {error}")
