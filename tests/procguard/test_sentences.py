"""What is told as a code and values, and the words it gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.shapes.groups import GroupFailure
from platform_launch.procguard.api.shapes.history import AuditEvent
from platform_launch.procguard.api.wire import Heartbeat
from platform_launch.procguard.core.failures import sentence_of, whose, with_silent
from platform_launch.procguard.core.registry import utc_now
from platform_launch.procguard.web.language import Words
from platform_launch.sentences import Sentence, Value, listed, quoted, sentence

KILLED = sentence("exit-reason", exit_code="7", reason=quoted("killed by {0} {exit_code}"))


def event(sentence: Sentence, **about: str) -> AuditEvent:
    named = {"who": "ann", "action": "settings", "object": "g", **about}
    return AuditEvent(
        id=1, at=utc_now(), **named, detail="in English", code=sentence.code, values=sentence.values
    )


def test_a_failure_is_told_in_both_languages_and_its_values_are_only_text() -> None:
    failed = with_silent(
        GroupFailure(worker="gn6-0", text=english(KILLED), code=KILLED.code, values=KILLED.values),
        listed(["gn7-0"]),
    )
    assert failed.text == "ended with exit code 7: killed by {0} {exit_code} (silent at that time: gn7-0)"
    told = sentence("run-fails", run=3, failure=whose(failed), restart=1, most=2)
    assert english(told) == f"run 3: gn6-0: {failed.text}; restart 1 of 2 follows"
    assert Words("zh").render(told) == (
        "第 3 次运行：gn6-0：已结束，退出码 7：killed by {0} {exit_code}（当时没有心跳：gn7-0）；"
        "即将自动重启（1/2）"
    )
    assert Sentence.read(json.loads(json.dumps(told.document()))) == told
    others: list[object] = [None, [], {}, {"code": 1}, {"code": "run", "values": [1]}]
    for none in others:
        with pytest.raises(ValueError, match="not a sentence"):
            Sentence.read(none)


@pytest.mark.parametrize(
    "newer",
    [
        {"reason_sentence": {"code": "killed", "values": {"signal": [None]}}},
        {"reason_sentence": {"code": "killed", "values": {"signal": None}}},
        {"reason_sentence": {"code": "killed", "values": {"signal": "x" * 40_000}}},
        {"reason_sentence": "killed"},
        {"why": {"kind": "cause", "details": 7}},
        {"why": {"kind": "cause", "title": "x" * 40_000}},
    ],
)
def test_what_a_newer_agent_says_otherwise_leaves_its_heartbeat_readable(newer: dict[str, Any]) -> None:
    report = {"number": 0, "state": "exited", "reason": "killed", "verdict": "in English", **newer}
    beat = {"node": "gn6", "instance": "instance-gn6", "workers": [report]}
    (read,) = Heartbeat.model_validate_json(json.dumps(beat)).workers
    assert (read.reason, read.verdict) == ("killed", "in English")
    assert (read.reason_sentence, read.why) == (None, None)


def test_lists_are_cut_and_written_as_the_language_does() -> None:
    many = sentence("nodes", nodes=listed([f"gn{number}" for number in range(20)]), count=20)
    assert english(many).endswith("gn14, gn15 … (20 in all)")
    assert Words("zh").render(many).endswith("gn14、gn15 等，共 20 个")
    assert english(sentence("nodes", nodes=listed(["gn1\x1b[31m"]))) == r"'gn1\x1b[31m'"
    assert Words("zh").object(event(many, action="agents-lost", object="20 nodes")) == "20 个节点"


def test_names_of_settings_and_roles_are_words_of_the_page() -> None:
    change = sentence("change", setting="command", before=sentence("unset"), after='"train"')
    assert Words("zh").detail(event(sentence("changes", changes=[change]))) == '命令：未设置 → "train"'
    assert Words("zh").detail(event(sentence("role", role="viewer"))) == "查看者"
    assert Words("zh").detail(event(sentence("workers", workers=["viewer"]))) == "viewer", (
        "a worker's name is none"
    )


@pytest.mark.parametrize(
    "told", [sentence("of-a-newer-version"), sentence("exit"), sentence("problem.newer")]
)
def test_what_is_of_another_version_is_told_in_english(told: Sentence) -> None:
    assert Words("zh").detail(event(told)) == "in English"


def test_what_an_earlier_version_wrote_stays_as_it_was() -> None:
    for failed in (
        GroupFailure(worker=None, text="killed by SIGKILL"),
        GroupFailure(worker=None, text="killed by SIGKILL", code="of-a-newer-version"),
    ):
        assert Words("zh").failure(failed) == "killed by SIGKILL"
    values: dict[str, Value] = {"seconds": "9", "workers": "gn1 (cold)"}
    old = GroupFailure(worker=None, text="", code="not-ready", values=values)
    assert Words("zh").render(sentence_of(old)) == "9 秒内未就绪：gn1 (cold)"
