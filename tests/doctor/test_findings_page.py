"""The page of findings and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from platform_launch.doctor.catalogue import CATALOGUE, REFUSALS
from platform_launch.doctor.finding import Level
from platform_launch.errors import LaunchError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "findings.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z0-9-]+)` \| ([a-z, ]+) \| (.+?) \| (.*) ?\|$", PAGE, flags=re.MULTILINE)
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("doctor", "cli", "plan", "health", "launch")
    for path in (ROOT / "platform_launch" / folder).rglob("*.py")
    if path.name != "catalogue.py"
)


def test_the_page_lists_exactly_the_ids_in_the_code() -> None:
    listed = [finding_id for finding_id, *_ in ROWS]
    assert len(listed) == len(set(listed))
    assert set(listed) == CATALOGUE


def test_every_id_is_used_somewhere() -> None:
    families = {f"refused-{name}" for name in ("usage", "topology", "input", "installation", "hardware")}
    unused = {i for i in CATALOGUE if f'"{i}"' not in CODE} - families
    assert unused == set()


def test_every_row_says_a_level_there_is_and_what_it_means() -> None:
    levels = {level.name.lower() for level in Level}
    for finding_id, said, meaning, _ in ROWS:
        assert set(said.split(", ")) <= levels, finding_id
        assert len(meaning) > 10, finding_id


def test_a_launch_can_only_be_refused_for_what_may_be_an_error() -> None:
    errors = {finding_id for finding_id, said, *_ in ROWS if "error" in said}
    assert set(REFUSALS) <= errors
    assert all(issubclass(family, LaunchError) for family in REFUSALS.values())
