"""What the launcher says, as values and as lines: nothing is lost between the two."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest

from platform_launch import events
from platform_launch.events import CATALOGUE, LEVELS, Event, event, line, mark, marked


def test_every_kind_has_a_level_and_marks_only_fields_of_its_line_or_known_ones() -> None:
    for event_id, kind in CATALOGUE.items():
        assert kind.level in LEVELS, event_id
        assert kind.template, event_id
        names = [name for _, name, _, _ in string.Formatter().parse(kind.template) if name is not None]
        assert all(name.isidentifier() for name in names), event_id


def test_a_line_is_made_of_the_fields_and_its_mark_can_be_read_back() -> None:
    said = event("training-failed", exit_code=9, duration="4 s")
    assert line(said) == "training ended with exit code 9 after 4 s"
    assert mark(said) == "[training-failed exit_code=9]"
    whole = f"12:04:31 [ERROR] {line(said)} {mark(said)}"
    assert marked(whole) == (line(said), Event("training-failed", "ERROR", fields={"exit_code": "9"}))


def test_a_refusals_line_is_an_error() -> None:
    found = marked("error: /env/bin/python3 has no torch [package-missing]")
    assert found is not None
    assert (found[1].id, found[1].level) == ("package-missing", "ERROR")


@pytest.mark.parametrize(
    "text",
    [
        "training-failed",
        "[training-failed]",  # nobody's
        "Step 3 [training-failed exit_code=9]",
        "[ERROR] no mark here",
        "[ERROR] a list [0, 1]",
        "[DEBUG] other [training-failed]",
        "[ERROR] unfinished [training-failed",
    ],
)
def test_a_line_that_is_not_the_launchers_has_no_mark(text: str) -> None:
    assert marked(text) is None


@pytest.mark.parametrize(
    "hostile", ["a\nb", "\x1b[2J", "a]b [x", "\udcff", "{0.__class__}", "%s", "\u202eabc", "x" * 9000]
)
def test_hostile_values_stay_one_line_without_controls(hostile: str) -> None:
    said = event("log-lost", path=hostile, problem=hostile)
    shown = line(said)
    assert "\n" not in shown
    assert shown.encode().decode().isprintable()
    stored = json.loads(events.as_json(said, 1))
    assert stored["fields"] == {"path": hostile, "problem": hostile}


def test_a_marks_values_cannot_forge_another_field() -> None:
    said = event("training-killed", signal="SIGKILL] [training-finished", exit_code=137, duration="1 s")
    assert mark(said) == "[training-killed exit_code=137]"


def test_a_missing_field_costs_the_words_and_not_the_event() -> None:
    assert line(Event("training-failed", "ERROR")) == "training-failed: {}"


def test_events_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    log = tmp_path / "train_x_node1_20261121-000000.log"
    path = events.beside(log)
    assert path.name == "train_x_node1_20261121-000000.events.jsonl"
    said = [
        event("training-finished", duration="1 s"),
        Event("variable-dead", "WARN", "NCCL_X", {"what": "no"}),
    ]
    path.write_bytes(b"".join(events.as_json(one, 1) for one in said))
    found = events.read(path)
    assert found is not None
    assert [(one.id, one.level, one.where, one.fields, one.node_rank) for one in found] == [
        (one.id, one.level, one.where, one.fields, 1) for one in said
    ]
    assert all(one.time.endswith("Z") for one in found)


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.events.jsonl"
    good = events.as_json(event("training-finished", duration="1 s"), 0)
    bad = [
        b"\xff\xfe\n",
        b"[]\n",
        b"{}\n",
        b'{"id": [], "level": "INFO", "fields": {}, "time": "", "node_rank": 0}\n',
        b'{"id": "x", "level": "LOUD", "fields": {}, "time": "", "node_rank": 0}\n',
        b'{"id": "x", "level": "INFO", "fields": [], "time": "", "node_rank": 0}\n',
        b"[" * 100_000 + b"\n",
        good[:20],
    ]
    path.write_bytes(good + b"".join(bad))
    found = events.read(path)
    assert found is not None
    assert [one.id for one in found] == ["training-finished"]
    assert events.read(tmp_path / "none") is None
    assert events.read(tmp_path) is None


def test_a_hang_is_reported_on_the_screen_of_node_0_alone() -> None:
    hang = events.event("no-progress", still_s=11.0, headline="rank 1 waits", kind="waits", ranks="1")
    assert events.is_for_every_screen(hang, node_rank=0)
    assert not events.is_for_every_screen(hang, node_rank=1)
