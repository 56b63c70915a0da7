from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from platform_launch import events
from platform_launch.cli.why import command
from platform_launch.console import languages
from platform_launch.errors import InputError
from platform_launch.observe.words import english
from platform_launch.sentences import sentence
from platform_launch.why.hang_records import read_record

STEM = "train_job_node0_20261122-101500"
WORDS = ["rank 3 (node 1, gn7, pid 812) is stopped", "  ranks 0-2 wait in all_reduce #6 for rank 3"]


def put(folder: Path, number: int = 1, ranks: tuple[int, ...] = (3,)) -> Path:
    hang = {
        "time": f"2026-11-22T10:2{number}:00Z",
        "still_s": 300.4,
        "kind": "hang",
        "suspect_ranks": ranks,
        "lines": WORDS,
    }
    path = folder / f"{STEM}.hang{number}.json"
    path.write_text(json.dumps({"hang": hang, "nodes": []}))
    return path


def log(folder: Path, *said: str) -> None:
    (folder / f"{STEM}.log").write_text("step 5\n")
    with (folder / f"{STEM}{events.SUFFIX}").open("w") as file:
        for name in said:
            fields = {"still_s": 300.0, "headline": "", "kind": "hang", "ranks": "3"}
            file.write(
                json.dumps({"time": "", "node_rank": 0, "id": name, "level": "WARN", "fields": fields})
            )
            file.write("\n")


def why(*arguments: str | Path) -> Any:
    done = CliRunner().invoke(command, ["--format", "json", *map(str, arguments)], catch_exceptions=False)
    return json.loads(done.stdout)


def test_last_record_beside_a_log_names_the_suspects(tmp_path: Path) -> None:
    log(tmp_path, "no-progress")
    put(tmp_path, 1, (7,))
    path = put(tmp_path, 2)
    said = why(tmp_path)
    assert said["suspect_ranks"] == [3]
    assert (said["hang"]["record"], said["hang"]["lines"]) == (str(path), WORDS)


@pytest.mark.parametrize(("kind", "headlines"), [("hang", ["hang"]), ("busy", ["hang", "cause"])])
def test_hang_is_the_answer_where_the_logs_name_no_cause(
    tmp_path: Path, kind: str, headlines: list[str]
) -> None:
    log(tmp_path, "no-progress")
    path = put(tmp_path)
    path.write_text(path.read_text().replace('"hang", "suspect', f'"{kind}", "suspect'))
    lines = CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False).stdout.splitlines()
    assert [name for line in lines if (name := line.partition(":")[0]) in ("hang", "cause")] == headlines
    assert why(tmp_path)["kind"] == ("nothing" if kind == "busy" else "hang")


def test_person_is_told_who_is_waited_for_and_where_all_stacks_are(tmp_path: Path) -> None:
    path = put(tmp_path)
    lines = CliRunner().invoke(command, [str(path)], catch_exceptions=False).stdout.splitlines()
    assert lines[0] == f"hang:       no progress for 300 s: {WORDS[0]}"
    assert lines[-1] == f"record:     {path} (2026-11-22T10:21:00Z)"


def test_sentences_of_a_record_are_said_in_chinese_and_stacks_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = sentence("rank", numbers=["0"])
    head = [sentence("culprit", who=rank, does=sentence("naps")), sentence("more-ranks", count=2)]
    place = sentence("place", who=rank, what="train.py:7 in step")
    lines = ["; ".join(map(english, head)), "  rank 0:   train.py:7 in step", f"  {english(place)}"]
    path = put(tmp_path)
    document = json.loads(path.read_text())
    sentences = [[one.document() for one in head], [], [place.document()]]
    document["hang"] |= {"lines": lines, "line_sentences": sentences}
    path.write_text(json.dumps(document))
    monkeypatch.setattr(languages, "_chosen", ["zh"])
    assert read_record(path).lines() == [
        "卡死：      已有 300 秒没有进展：rank 0：在睡眠（sleep）；以及另外 2 个 rank",
        "              rank 0:   train.py:7 in step",
        "              rank 0：train.py:7 in step",
        f"记录：      {path} (2026-11-22T10:21:00Z)",
    ]


@pytest.mark.parametrize("sentences", [[], [[{"code": "of-tomorrow"}]], [["culprit"], [7]]])
def test_sentences_that_are_not_known_leave_the_english_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: list[object]
) -> None:
    path = put(tmp_path)
    document = json.loads(path.read_text())
    document["hang"]["line_sentences"] = sentences
    path.write_text(json.dumps(document))
    monkeypatch.setattr(languages, "_chosen", ["zh"])
    first, second, _ = read_record(path).lines()
    assert (first.endswith(WORDS[0]), second.endswith(WORDS[1])) == (True, True)


def test_hang_that_went_on_is_not_spoken_of(tmp_path: Path) -> None:
    log(tmp_path, "no-progress", "progress-again")
    put(tmp_path)
    assert "hang" not in why(tmp_path)


def test_record_of_an_earlier_launch_is_not_read(tmp_path: Path) -> None:
    put(tmp_path).rename(tmp_path / "train_job_node0_20261121-101500.hang1.json")
    log(tmp_path)
    assert "hang" not in why(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"hang": {"time": 1}}', "[" * 100_000])
def test_broken_record_is_named_and_keeps_no_log_from_being_read(text: str, tmp_path: Path) -> None:
    log(tmp_path, "no-progress")
    path = put(tmp_path)
    path.write_text(text)
    assert "hang" not in why(tmp_path)
    with pytest.raises(InputError, match=r"hang1\.json is not a hang record"):
        why(path)
