"""Logs of runs on disk: every byte once, within a limit, whatever names and offsets come."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from platform_launch.procguard.api.refused import NotFound, Unavailable
from platform_launch.procguard.server.logs import reading
from platform_launch.procguard.server.logs.filtering import LineFilter
from platform_launch.procguard.server.logs.merged import LogPlace, MergedLog, MergedPage
from platform_launch.procguard.server.logs.reading import Reader, segment_path, segments
from platform_launch.procguard.server.logs.store import KEPT_RUNS, Full, Logs, keep_within, make_room
from tests.lab.disk import requires_mount

MIB = 1024 * 1024


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs", MIB)


def all_of(logs: Logs, worker: str = "gn6-0", generation: int | None = None) -> bytes:
    return b"".join(Reader(logs.root, worker, generation).download())


def log_of(logs: Logs, worker: str = "gn6-0", generation: int = 1) -> MergedLog:
    return MergedLog(logs, [(0, worker)], generation, ended=False)


def found_by(logs: Logs, most: int = 500, **sought: Any) -> MergedPage:
    return log_of(logs).after(None, most, LineFilter(**sought))


def lines_of(page: MergedPage) -> list[tuple[int, str]]:
    return [(one.line.number, one.line.text) for one in page.lines]


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

    log = log_of(logs)
    first = log.after(None, 3, LineFilter())
    assert lines_of(first) == [(n + 1, lines[n].decode().strip()) for n in range(3)]
    every, place = list[tuple[int, str]](), None
    while True:
        page = log.after(place, 5000, LineFilter())
        every, place = every + lines_of(page), page.after
        if not page.more:
            break
    assert every[-1] == (150_000, "step 0149999 loss 0.123")
    gaps = [number for (before, _), (number, _) in pairwise(every) if number != before + 1]
    assert len(gaps) == 1, "what was dropped"
    assert all(text in lines[number - 1].decode() for number, text in every)
    assert [number for number, _ in lines_of(log.before(None, 3))] == [149_998, 149_999, 150_000]

    found = found_by(logs, text="STEP 0149999")
    assert lines_of(found) == [(150_000, "step 0149999 loss 0.123")]
    assert text[found.lines[0].place.offset :].startswith(b"step 0149999")
    downloaded = all_of(logs)
    assert b"bytes left out here]" in downloaded
    assert downloaded.endswith(lines[-1])


def test_a_growing_log_is_followed_and_an_unfinished_line_comes_again(logs: Logs) -> None:
    text = "训练 step 1\n🚀 done\n" * 50 + "100 %\r" * 20_000 + "\nunfinished"
    data, have, place, seen = text.encode(), 0, None, dict[LogPlace, str]()
    for end in [*range(7, 2000, 7), *range(2000, len(data) + 5000, 5000)]:
        have = logs.append("gn6-0", 1, have, data[have:end])
        page = log_of(logs).after(place, 64, LineFilter())
        seen, place = seen | {one.place: one.line.text for one in page.lines}, page.after
        assert page.more or have == page.size
    assert "".join(seen.values()) == text.replace("\n", ""), "a line of 120 kB comes in pieces"
    assert page.lines[-1].place == page.after
    last = log_of(logs).before(None, 1)
    assert (lines_of(last), last.after) == ([(102, "unfinished")], page.after)


def test_an_empty_log_and_an_offset_beyond_the_end(logs: Logs) -> None:
    assert log_of(logs).before(None, 10).lines == log_of(logs).after(None, 10, LineFilter()).lines == []
    logs.append("gn6-0", 4, 0, b"one\ntwo")
    log = log_of(logs, generation=4)
    assert log.after(LogPlace(2**49, 0, 10**15), 10, LineFilter()).lines == []
    assert log.of_offset(10**15) is log.of_line(0, 3) is None
    assert log.of_offset(4) == log.of_line(0, 2) == log.before(None, 1).lines[0].place


def test_a_search_says_that_there_is_more(logs: Logs) -> None:
    logs.append("gn6-0", 1, 0, b"".join(b"error %d\n" % n for n in range(30)))
    found = found_by(logs, 10, text="error")
    assert [number for number, _ in lines_of(found)] == list(range(1, 11))
    assert found.more
    assert not found_by(logs, 1, text="error 29").more


def test_a_line_of_megabytes_is_searched_in_pieces(logs: Logs) -> None:
    logs.append("gn6-0", 1, 0, b"\r".join(b"%d%%" % n for n in range(200_000)) + b"\nthe end\n")
    assert lines_of(found_by(logs, text="the end")) == [(2, "the end")]


@pytest.mark.parametrize("block", [1, 7, 64])
def test_a_search_finds_every_line_however_it_reads(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", block)
    lines = ["one", "", "TWO ünder", "no", "two" * 30, "", "the last two"]
    data = "\n".join(lines).encode()
    logs.append("gn6-0", 1, 0, data)
    found = [(one.line.number, one.line.offset) for one in found_by(logs, text="two").lines]
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
