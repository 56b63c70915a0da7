from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from platform_launch import errors

ROOT = Path(__file__).resolve().parent.parent
OWN_VARIABLE = re.compile(r"\b(?:PLATFORM_LAUNCH_[A-Z_]+|DIST_LAUNCH_JOB|CLUSTER_INFO_FILE|SSH_[A-Z_]+)\b")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current() -> None:
    for path, page in generator().PAGES.items():
        assert path.read_text(encoding="utf-8") == page(), f"{path} is stale: run python docs/generate.py"


def test_every_variable_of_our_own_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "variables.md").read_text(encoding="utf-8")
    sources = [ROOT / "start_multinode_platform.sh", *(ROOT / "platform_launch").rglob("*.py")]
    named = {name for source in sources for name in OWN_VARIABLE.findall(source.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert {name for name in named if name not in page} == set()


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    families = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.LaunchError)
    ]
    assert len(families) > 5
    for family in families:
        assert f"| {family.exit_code} | {family.__name__} |" in page
    assert len({family.exit_code for family in families}) == len(families)


def test_every_link_leads_somewhere() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "check_links.py")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/dist-launch.md",
        "docs/how-to/run-by-hand.md",
        "docs/how-to/several-nodes.md",
        "docs/how-to/slurm.md",
        "docs/how-to/submit-a-job.md",
    ],
)
def test_page_has_the_same_sections_in_both_languages(page: str) -> None:
    def shape(name: str) -> list[int]:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        return [len(line) - len(line.lstrip("#")) for line in lines if line.startswith("#") and " " in line]

    assert shape(page) == shape(page.replace(".md", ".zh-CN.md"))


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    def listed(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            yield from (page for value in entry.values() for page in listed(value))
        elif isinstance(entry, list):
            yield from (page for value in entry for page in listed(value))

    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = yaml.safe_load(site[site.index("\nnav:") :])["nav"]
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 5
    assert pages - set(listed(navigation)) == set()
