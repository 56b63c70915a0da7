"""What is said beside an answer: an id and values, told in English and in Chinese."""

from __future__ import annotations

import ast
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

import platform_launch.why
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.explaining import explain
from platform_launch.why.note import ENGLISH, Note, note, ranks_named
from platform_launch.why.sources import LogSource
from tests.why.conftest import Explain, uncaught
from tests.why.corpus import cases

FIELD = re.compile(r"\{(\w+)\}")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
VERDICT = TypeAdapter(Verdict)
SOURCES = sorted(Path(platform_launch.why.__file__).parent.rglob("*.py"))


def carried(verdict: Verdict) -> Verdict:
    """Return a verdict as a server reads it from an agent."""
    return VERDICT.validate_json(json.dumps(asdict(verdict)))


def test_each_note_that_is_made_has_words_and_gives_their_values() -> None:
    made: dict[str, set[str | None]] = {}
    for source in SOURCES:
        for call in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "note":
                continue
            ids = [one.value for one in ast.walk(call.args[0]) if isinstance(one, ast.Constant)]
            made |= {str(one): {keyword.arg for keyword in call.keywords} for one in ids if one in ENGLISH}
            assert [one for one in ids if one in ENGLISH or one == "cause"], (source.name, ids)
    # The event's place is added where one is known.
    made["event-on"] = made["event"] | {"place"}
    assert made == {note_id: set(FIELD.findall(english)) for note_id, english in ENGLISH.items()}


def test_every_note_of_the_known_logs_is_told_in_chinese_after_the_wire() -> None:
    told = 0
    for case in cases():
        verdict = carried(case.answer())
        assert verdict.notes == tuple(one.render("en") for one in verdict.noted)
        lines = [line for line in verdict.lines("zh") if line.startswith("备注")]
        assert len(lines) == len(verdict.notes)
        for english, line in zip(verdict.notes, lines, strict=True):
            assert CHINESE.search(line.removeprefix("备注")), line
            assert english not in line
            told += 1
    assert told > 20


def test_a_note_of_another_version_is_told_in_english() -> None:
    log = io.BytesIO(b"RuntimeError: CUDA error: out of memory\n")
    told = explain([LogSource("a.log", log)]).with_notes([note("oom-kills", count=2)])
    assert "备注：      运行期间 cgroup 记录了 2 次因内存不足杀死进程" in told.lines("zh")
    english = "备注：      out-of-memory kills counted by the cgroup during the run: 2"
    newer = replace(told, noted=(*told.noted[:-1], Note("of-tomorrow", {"count": 2})))
    other = replace(told, noted=(*told.noted[:-1], Note("oom-kills", {"number": 2})))
    for verdict in (replace(told, noted=()), newer, other):
        assert english in carried(verdict).lines("zh")


def test_notes_nest_no_deeper_than_any_is_made() -> None:
    document: dict[str, object] = {"id": "perhaps", "values": {"event": "x"}}
    for _ in range(4):
        document = {"id": "perhaps", "values": {"event": document}}
    with pytest.raises(ValidationError, match="more than 4 deep"):
        VERDICT.validate_python({"kind": "cause", "noted": [document]})


def test_names_of_ranks() -> None:
    for ranks, english, chinese in (
        ([5], "rank 5", "rank 5"),
        ([3, 5], "ranks 3, 5", "rank 3、5"),
        ([4, 5, 6, 7], "ranks 4–7", "rank 4–7"),
        ([0, 1, 2, 5, 7, 8], "ranks 0–2, 5, 7, 8", "rank 0–2、5、7、8"),
        (
            list(range(0, 20, 2)),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more",
            "rank 0、2、4、6、8、10、12、14 等（另有 2 个）",
        ),
    ):
        assert ranks_named(ranks).render("en") == english
        assert ranks_named(ranks).render("zh") == chinese


def test_others_that_show_the_same_are_named(explain_text: Explain) -> None:
    full = "OSError: [Errno 28] No space left on device: '/out/a.pt'"
    for lines, others in (
        (["[rank3]: ", "[rank0]: ", "[rank1]: ", "[rank2]: "], "ranks 0–2"),
        (["gpu-1: ", "gpu-2: ", "gpu-3: "], "hosts gpu-2, gpu-3"),
        (["gpu-1: [rank0]: ", "gpu-1: [rank1]: ", "gpu-2: [rank8]: "], "hosts gpu-1, gpu-2, ranks 1, 8"),
    ):
        verdict = explain_text("".join(uncaught(full, prefix) for prefix in lines))
        assert [one.render("en") for one in verdict.noted if one.id == "same-on"] == [f"the same on {others}"]
    assert not explain_text(uncaught(full, "[rank0]: ")).noted


@pytest.mark.parametrize(("label", "others"), [("{}: ", "tasks"), ("[node {}] ", "nodes")])
def test_other_tasks_and_nodes_that_show_the_same_are_named(
    explain_text: Explain, label: str, others: str
) -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    verdict = explain_text("".join(label.format(number) + ecc for number in (3, 5, 8)))
    assert (verdict.cause, verdict.notes) == ("ecc", (f"the same on {others} 5, 8",))
    # Of two exceptions that no signature knows, each is another failure.
    odd = uncaught("RuntimeError: shard 3 is odd", label.format(3))
    even = uncaught("RuntimeError: shard 4 is even", label.format(4))
    assert not any(told.startswith("the same") for told in explain_text(odd + even).notes)
