from __future__ import annotations

import re
from pathlib import Path

import pytest

from platform_launch.launch import pace_watch
from platform_launch.observe import hang
from platform_launch.observe.words import WORDS
from platform_launch.procguard.api import ranks
from platform_launch.procguard.api.english import ENGLISH
from platform_launch.procguard.api.english import TEMPLATES as SENTENCES
from platform_launch.procguard.api.ranks import WorkerName, assign
from platform_launch.procguard.api.refused import problem_templates
from platform_launch.procguard.api.shapes import Problem
from platform_launch.procguard.api.shapes.groups import GroupFailure, GroupPhase, GroupSettings
from platform_launch.procguard.web import language
from platform_launch.procguard.web.language import Words, choose, templates
from platform_launch.procguard.web.listing import STATES
from platform_launch.procguard.web.page_request import own_path
from platform_launch.sentences import Value

WEB = Path(language.__file__).parent
TEMPLATES = "\n".join(path.read_text("utf-8") for path in (WEB / "templates").glob("*.html"))
SCRIPTS = "\n".join(path.read_text("utf-8") for path in (WEB / "static").glob("*.js"))
LANGUAGE = Path(language.__file__).read_text("utf-8")
ROOMS = Path(ranks.__file__).parents[1].glob("[acdsw]*/**/*.py")
PROCGUARD = "\n".join(path.read_text("utf-8") for path in ROOMS)
OBSERVE = "\n".join(
    path.read_text("utf-8")
    for path in (*Path(hang.__file__).parent.glob("[!w]*.py"), Path(pace_watch.__file__))
)
CHOSEN = (
    *("workers", "workers-taken-out", "quoted", "list-cut"),
    *("device-findings", "device-finding", "device-finding-numbered"),
)
"""Codes of sentences that are chosen where they are said."""


def used() -> set[str]:
    """Every message the page may say, from where it says it."""
    said = set(re.findall(r"""\bt\(["']([\w.-]+)["'][,)]""", TEMPLATES))
    said |= {f"{key}.other" for key in re.findall(r'\bt\.count\("([\w.]+)"', TEMPLATES)}
    said |= {f"js.{key}" for key in re.findall(r'\bmessage\("([\w.]+)"', SCRIPTS)}
    said |= {f"js.live.{state}" for state in re.findall(r'connection\("(\w+)"\)', SCRIPTS)}
    said |= {f"phase.{phase.value}" for phase in GroupPhase} | {
        f"state.{state}" for state in (*STATES, "failed")
    }
    said |= {f"setting.{field}" for field in GroupSettings.model_fields}
    said |= {f"setting.{field}.help" for field in GroupSettings.model_fields}
    said |= {f"sentence.{code}" for code in re.findall(r'\bsentence\(\s*"([\w-]+)"', PROCGUARD)}
    said |= {f"sentence.{code}" for code in CHOSEN}
    said |= {f"sentence.{code}" for code in re.findall(r"""["']([a-z-]+)["']""", OBSERVE) if code in WORDS}
    composed = tuple(re.findall(r"""f["']([a-z-]+-)\{""", OBSERVE))
    said |= {f"sentence.{code}" for code in WORDS if composed and code.startswith(composed)}
    said |= set(re.findall(r'self\("(\w+)"', LANGUAGE))
    return said


def known() -> set[str]:
    """Every message that has words."""
    return templates().keys() | {f"sentence.{code}" for code in SENTENCES}


def test_every_message_has_words() -> None:
    assert len(used()) > 150
    assert used() - known() == set()


def test_every_problem_has_words() -> None:
    raised = r"(?:problem|RequestRefused|NotFound|Unavailable|Superseded|Forbidden|Unauthorized|TooMany)"
    used = {*re.findall(raised + r'\(\s*"([a-z-]+)"', PROCGUARD)}
    used |= {*re.findall(r'(?:BadPattern|Full|_only)\([^")]*"([a-z-]+)"', PROCGUARD)}
    used |= {*re.findall(r'"(input-[a-z-]+|node-[a-z]+)"', PROCGUARD)}
    codes = {key.removesuffix(".hint") for key in problem_templates()}
    assert used & codes == codes
    assert {code for code in used - codes if not code.startswith("node-")} == set()


def test_a_code_has_one_meaning() -> None:
    assert {code for code in WORDS if code in ENGLISH and WORDS[code] != ENGLISH[code]} == set()


def test_no_message_is_kept_that_nobody_says() -> None:
    # Said through a variable, or as one form of two.
    by_other_words = (
        *("action.", "duration.", "kind.", "count.", "tab.", "deadline.", "node.", "sort.", "events."),
        *("field.", "js.chart.", "js.charts.none.", "login.problem."),
    )
    assert {key for key in known() if not key.startswith(by_other_words)} - used() == set()


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("zh", "en", "zh"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "de,en;q=0.5,zh;q=0.7", "zh"),
        (None, "fr", "en"),
        ("../../etc", "", "en"),
        (None, "zh;q=nonsense,en;q=0.1", "en"),
    ],
)
def test_language_is_the_chosen_one_else_the_browsers(
    cookie: str | None, accepted: str, language: str
) -> None:
    assert choose(cookie, accepted) == language


def test_problems_are_said_in_chinese_with_their_values() -> None:
    table = assign([WorkerName("gn6", 0)], master_addr="gn9", master_port=29500)
    (problem,) = table.problems
    text, _ = Words("zh").problem(problem)
    assert "gn9" in text
    assert "不是该分组的节点" in text
    unknown = Problem(code="of-a-newer-version", text="in English", hint="and a hint")
    assert Words("zh").problem(unknown) == ("In English.", "And a hint.")


def test_failures_are_said_in_chinese_with_their_values() -> None:
    values: dict[str, Value] = {"exit_code": "7", "reason": "killed", "silent": "gn7-0"}
    failed = GroupFailure(worker="gn6-0", text="in English", code="exit-reason", values=values)
    assert Words("zh").failure(failed) == "已结束，退出码 7：killed（当时没有心跳：gn7-0）"
    for code, name in (("", "a"), ("of-a-newer-version", "b"), ("exit", "renamed")):
        failed = GroupFailure(worker="gn6-0", text="in English", code=code, values={name: "1"})
        assert Words("zh").failure(failed) == "in English"


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "", "x"]
)
def test_logging_in_leads_nowhere_else(path: str) -> None:
    assert own_path(path) == "/"


def test_logging_in_leads_back() -> None:
    assert own_path("/groups/a?x=1") == "/groups/a?x=1"
