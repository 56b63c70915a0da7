"""Logs of runs on disk: every byte once, within a limit, whatever names and offsets come."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.procguard.api.refused import NotFound, Unavailable
from platform_launch.procguard.server.logs import reading
from platform_launch.procguard.server.logs.filtering import LineFilter
from platform_launch.procguard.server.logs.reading import Reader
from platform_launch.procguard.server.logs.segments import segment_path, segments
from platform_launch.procguard.server.logs.store import KEPT_RUNS, Full, Logs, keep_within, make_room
from tests.lab.disk import requires_mount

MIB = 1024 * 1024


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs", MIB)


def all_of(logs: Logs, worker: str = "gn6-0", generation: int | None = None) -> bytes:
    return b"".join(Reader(logs.root, worker, generation).download())


def test_every_byte_once_whatever_is_sent_twice(logs: Logs) -> None:
    assert logs.append("gn6-0", 1, 0, b"hello ") == 6
    assert logs.append("gn6-0", 1, 0, b"hello ") == 6
    assert logs.append("gn6-0", 1, 3, b"lo world") == 11
    assert logs.append("gn6-0", 1, 40, b"after a gap") == 11
    assert logs.append("gn6-0", 1, 11, b"") == 11
    assert all_of(logs) == b"hello world"
    assert logs.size("gn6-0", 1) == 11
    assert logs.size("gn6-0", 2) == logs.size("gn6-1", 1) == 0


def test_random_chunks_give_what_was_written(logs: Logs) -> None:
    chance = random.Random(5)
    text = b"".join(b"line %d %s\n" % (n, b"x" * chance.randrange(200)) for n in range(4000))
    have = 0
    while have < len(text):
        if chance.random() < 0.1:  # the server was killed and started again
            logs = Logs(logs.root, MIB)
        start = max(have - chance.randrange(3000), 0)
        have = logs.append("gn6-0", 3, start, text[start : start + chance.randrange(60_000)])
    assert all_of(logs) == text


def test_over_the_limit_the_beginning_and_the_newest_part_are_kept(logs: Logs) -> None:
    lines = [b"step %07d loss 0.123\n" % n for n in range(150_000)]
    text, have = b"".join(lines), 0
    while have < len(text):
        have = logs.append("gn6-0", 1, have, text[have : have + 200_000])
    kept = sum(file.stat().st_size for file in logs.root.rglob("*.log"))
    assert MIB * 0.9 < kept <= MIB
    assert logs.size("gn6-0", 1) == Logs(logs.root, MIB).size("gn6-0", 1) == len(text)

    log = Reader(logs.root, "gn6-0")
    first = log.window(0, 1000)
    assert first.text == text[:1000].decode()
    beyond = log.window(MIB, 1000)
    assert beyond.offset > MIB
    assert beyond.text == text[beyond.offset : beyond.offset + 1000].decode()
    assert text[: beyond.offset].count(b"\n") + 1 == beyond.line
    last = log.tail(3, 64 * 1024)
    assert last.text.encode() == b"".join(lines[-3:])
    assert (last.line, last.next_offset) == (149_998, len(text))

    found = log.search(LineFilter("STEP 0149999"))
    assert [(m.line, m.text) for m in found.matches or []] == [(150_000, "step 0149999 loss 0.123")]
    assert text[(found.matches or [])[0].offset :].startswith(b"step 0149999")
    downloaded = all_of(logs)
    assert b"bytes left out here]" in downloaded
    assert downloaded.endswith(lines[-1])


def test_a_window_follows_a_growing_log_without_losing_half_characters(logs: Logs) -> None:
    text = "训练 step 1\n🚀 done\n" * 50
    data, have, position, seen = text.encode(), 0, 0, ""
    for end in range(7, len(data) + 7, 7):
        have = logs.append("gn6-0", 1, have, data[have:end])
        window = Reader(logs.root, "gn6-0", 1).window(position, 64)
        assert window.offset == position
        position, seen = window.next_offset, seen + window.text
    while position < len(data):
        window = Reader(logs.root, "gn6-0", 1).window(position, 64)
        position, seen = window.next_offset, seen + window.text
    assert seen == text


def test_an_empty_log_and_an_offset_beyond_the_end(logs: Logs) -> None:
    empty = Reader(logs.root, "gn6-0", 4).tail(10, 1000)
    assert (empty.text, empty.size, empty.line, empty.generation) == ("", 0, 1, 4)
    logs.append("gn6-0", 4, 0, b"one\ntwo")
    beyond = Reader(logs.root, "gn6-0", 4).window(10**15, 1000)
    assert (beyond.offset, beyond.next_offset, beyond.text, beyond.line) == (7, 7, "", 2)
    assert Reader(logs.root, "gn6-0").search(LineFilter("TWO")).matches is not None
    assert Reader(logs.root, "gn6-0").tail(1, 1000).text == "two"


def test_a_search_says_that_there_is_more(logs: Logs) -> None:
    logs.append("gn6-0", 1, 0, b"".join(b"error %d\n" % n for n in range(30)))
    found = Reader(logs.root, "gn6-0").search(LineFilter("error"), limit=10)
    assert [match.line for match in found.matches or []] == list(range(1, 11))
    assert found.more
    assert not Reader(logs.root, "gn6-0").search(LineFilter("error 29"), limit=1).more


def test_a_line_of_megabytes_is_searched_in_pieces(logs: Logs) -> None:
    logs.append("gn6-0", 1, 0, b"\r".join(b"%d%%" % n for n in range(200_000)) + b"\nthe end\n")
    found = Reader(logs.root, "gn6-0").search(LineFilter("the end"))
    assert [match.line for match in found.matches or []] == [2]


@pytest.mark.parametrize("block", [1, 7, 64])
def test_a_search_finds_every_line_however_it_reads(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", block)
    lines = ["one", "", "TWO ünder", "no", "two" * 30, "", "the last two"]
    data = "\n".join(lines).encode()
    logs.append("gn6-0", 1, 0, data)
    found = [
        (match.line, match.offset)
        for match in Reader(logs.root, "gn6-0").search(LineFilter("two")).matches or []
    ]
    assert found == [(n + 1, data.index(lines[n].encode())) for n in (2, 4, 6)]


@pytest.mark.parametrize(
    "name",
    [
        "../x-0",
        "a/../../b-0",
        "..-0",
        ".-0",
        "/etc-0",
        f"gn6-{'9' * 300}",
        "a\0b-0",
        "gn6",
        "gn6-00",
        "gn6--1",
        "",
        "x" * 70 + "-1",
    ],
)
def test_no_name_becomes_a_path(logs: Logs, name: str) -> None:
    with pytest.raises(NotFound):
        logs.append(name, 1, 0, b"x")
    with pytest.raises(NotFound):
        Reader(logs.root, name)
    assert not logs.root.exists()


def test_names_that_look_alike_have_logs_of_their_own(logs: Logs) -> None:
    logs.append("gn6-1-0", 1, 0, b"node gn6-1")
    logs.append("gn6-1", 1, 0, b"node gn6")
    assert (all_of(logs, "gn6-1-0"), all_of(logs, "gn6-1")) == (b"node gn6-1", b"node gn6")


def test_old_runs_make_room_for_new_ones(logs: Logs) -> None:
    for generation in range(1, KEPT_RUNS + 6):
        logs.append("gn6-0", generation, 0, b"x")
    assert Reader(logs.root, "gn6-0").generations == list(range(6, KEPT_RUNS + 6))
    # A straggler of a run no longer kept is dropped, and its agent told that it need not send it again.
    assert logs.append("gn6-0", 2, 100, b"late") == 104
    assert 2 not in Reader(logs.root, "gn6-0").generations


def test_all_logs_together_keep_within_a_limit(logs: Logs) -> None:
    for age, (worker, generation) in enumerate(
        [("gn6-0", 1), ("gn6-0", 2), ("gone-0", 7), ("gn6-0", 3), ("gn7-0", 3)]
    ):
        logs.append(worker, generation, 0, b"x" * 1000)
        for file in (logs.root / worker[:-2] / "0" / str(generation)).iterdir():
            os.utime(file, (1000 + age, 1000 + age))
    (logs.root / "notes" / "of people").mkdir(parents=True)
    each = 1000 + 16  # and the mark that says when they came

    assert make_room(5 * each, logs, ["gn6-0", "gn7-0"]) == 5 * each
    assert make_room(4600, logs, ["gn6-0", "gn7-0"]) == 4 * each
    assert Reader(logs.root, "gn6-0").generations == [2, 3]
    # The log of a node that was forgotten may go; the two newest runs of the others would be sent again.
    assert make_room(100, logs, ["gn6-0", "gn7-0"]) == 3 * each
    assert (Reader(logs.root, "gn6-0").generations, Reader(logs.root, "gone-0").generations) == ([2, 3], [])
    assert logs.append("gone-0", 7, 0, b"again") == 5  # nothing in memory says that it is there already


def test_why_the_logs_are_beyond_their_limit_stays_the_same_while_they_grow(logs: Logs) -> None:
    logs.append("gn6-0", 1, 0, b"x")
    segment = max((logs.root / "gn6" / "0" / "1").iterdir(), key=lambda file: file.stat().st_size)
    told = set()
    for size in (10**9, 2 * 10**9):  # a hole: it takes no room
        os.truncate(segment, size)
        told.add(keep_within(10**6, logs, ["gn6-0"]))
    (why,) = told  # another one each time would be logged each time
    assert "logs_limit_gib" in why


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@requires_mount
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    blocker = small_disk / "blocker"
    blocker.write_bytes(b"x" * 150_000)
    logs, data = Logs(small_disk / "logs", MIB), bytes(range(256)) * 800
    with pytest.raises(Full) as refused:
        logs.append("gn6-0", 1, 0, data)
    assert refused.value.status == 507
    have = logs.size("gn6-0", 1)
    assert 0 < have < len(data)  # what was written is counted, not written again
    blocker.unlink()
    while have < len(data):
        have = logs.append("gn6-0", 1, have, data[have : have + 50_000])
    assert all_of(logs) == data


def test_a_folder_that_cannot_be_read_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    logs = Logs(tmp_path / "logs", MIB)
    with pytest.raises(Unavailable):
        logs.append("gn6-0", 1, 0, b"x")
    with pytest.raises(Unavailable):
        Reader(logs.root, "gn6-0", 1)
    assert logs.size("gn6-0", 1) == 0


def test_a_segment_that_goes_away_while_they_are_listed_hides_no_other(tmp_path: Path) -> None:
    kept = [segment_path(tmp_path, start, 0) for start in (0, 10, 20, 30)]
    for path in kept:
        path.write_bytes(b"0123456789")
    for start in (5, 15, 25):
        segment_path(tmp_path, start, 0).symlink_to("gone")  # what is listed and is not there any more
    assert [segment.path for segment in segments(tmp_path)] == kept
