"""The logs of a run's ranks as one: values and files, no server."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from platform_launch.procguard.server.logs.filtering import BadPattern, LineFilter
from platform_launch.procguard.server.logs.merged import LogPlace, MergedLog, chosen_ranks
from platform_launch.procguard.server.logs.store import Logs
from platform_launch.procguard.server.logs.times import FILE, ArrivalClock, ArrivalMarks

WORKERS = [(0, "gn6-0"), (1, "gn7-0")]


def write(root: Path, parts: list[tuple[int, str, bytes]]) -> None:
    """Write parts of logs as they came: at a time in seconds, of a worker."""
    logs, clocks, sizes = Logs(root, 64 * 1024), dict[str, ArrivalClock](), dict[str, int]()
    for at, worker, data in parts:
        size = sizes.get(worker, 0)
        assert logs.append(worker, 1, size, data) == size + len(data)
        node, number = worker.rsplit("-", 1)
        folder = root / node / number / "1"
        if worker not in clocks:
            (folder / FILE).unlink(missing_ok=True)  # the clock of this moment
            clocks[worker] = ArrivalClock(folder)
        clocks[worker].record(size, at * 1000)
        sizes[worker] = size + len(data)


def texts(log: MergedLog, **more: object) -> list[str]:
    page = log.after(None, 1000, LineFilter(**more))  # type: ignore[arg-type]
    return [f"{one.place.rank}:{one.line.text}" for one in page.lines]


def whole(root: Path, *, ended: bool = True) -> MergedLog:
    return MergedLog(Logs(root, 64 * 1024), WORKERS, 1, ended=ended)


def test_lines_of_all_ranks_are_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    parts = [
        (10, "gn6-0", b"a\nb"),
        (11, "gn7-0", b"x\n"),
        (12, "gn6-0", b"b\nc\n"),
        (12, "gn7-0", b"y\nend"),
    ]
    write(tmp_path, parts)
    assert texts(whole(tmp_path)) == ["0:a", "0:bb", "1:x", "0:c", "1:y", "1:end"]
    assert texts(whole(tmp_path, ended=False))[-1] == "1:y", "a line that has not ended is none yet"


@pytest.mark.parametrize("most", [1, 2, 3, 50])
def test_pages_backward_and_forward_hold_every_line_once(tmp_path: Path, most: int) -> None:
    parts = [
        (at, worker, f"{worker} {at} {part}\n{'.' * 20}\n".encode())
        for at in range(20, 40)
        for part in range(3)
        for worker in ("gn6-0", "gn7-0")
        if (at + part) % 3 or worker == "gn6-0"
    ]
    write(tmp_path, parts)
    log = whole(tmp_path)
    every = [one.place for one in log.after(None, 5000, LineFilter()).lines]
    assert len(every) == 2 * len(parts)
    assert every == sorted(set(every))
    backward, place = list[LogPlace](), None
    while (page := log.before(place, most)).lines:
        backward[:0] = [one.place for one in page.lines]
        if page.before is None:
            break
        place = LogPlace.parse(str(page.before))
    assert backward == every
    forward, place = list[LogPlace](), None
    while True:
        page = log.after(place, most, LineFilter())
        forward += [one.place for one in page.lines]
        place = page.after
        if not page.more:
            break
    assert forward == every


def test_a_rank_that_is_read_in_part_ends_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform_launch.procguard.server.logs.merged._MOST", 200)
    monkeypatch.setattr("platform_launch.procguard.server.logs.merged._LEAST", 200)
    parts = [(at, "gn6-0", b"much\n" * 30) for at in range(20, 40)] + [
        (at, "gn7-0", b"few\n") for at in range(20, 40)
    ]
    write(tmp_path, sorted(parts))
    log = whole(tmp_path)
    seen, place = 0, None
    while True:
        page = log.before(place, 5000)
        assert [one.place for one in page.lines] == sorted(one.place for one in page.lines)
        seen += len(page.lines)
        place = page.before
        if place is None:
            break
    assert seen == 20 * 31
    seen, after = 0, None
    while True:
        page = log.after(after, 5000, LineFilter())
        seen, after = seen + len(page.lines), page.after
        if not page.more:
            break
    assert seen == 20 * 31


def test_what_is_sought_comes_with_its_context(tmp_path: Path) -> None:
    said = b"one\ntwo\nRuntimeError: CUDA out of memory\nfour\nfive\n"
    write(tmp_path, [(10, "gn6-0", said), (11, "gn7-0", b"fine\n")])
    assert texts(whole(tmp_path), errors=True) == ["0:RuntimeError: CUDA out of memory"]
    assert texts(whole(tmp_path), text="f(our|ive)$", expression=True) == ["0:four", "0:five"]
    page = whole(tmp_path).after(None, 10, LineFilter("cuda"), context=1)
    assert [(one.line.text, one.line.match) for one in page.lines] == [
        ("two", False),
        ("RuntimeError: CUDA out of memory", True),
        ("four", False),
    ]


LARGE = (
    "(?:(?:x{1000}){1000}){5}",
    "(?:" * 200 + "x" + "{2}){2}" * 200,
    r"[\pL\pN]{1000}" * 12,
)


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", *LARGE])
def test_an_expression_that_is_none_or_too_large_is_refused_before_it_costs_anything(pattern: str) -> None:
    before = psutil.Process().memory_info().rss
    with pytest.raises(BadPattern):
        LineFilter(pattern, expression=True)
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_a_search_that_takes_long_stops_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends however short the time of each request is: each makes progress."""
    monkeypatch.setattr("platform_launch.procguard.server.logs.filtering._WITHIN_S", 0.0)
    logs = Logs(tmp_path, 2**30)
    logs.append("gn6-0", 1, 0, b"aaaa!\n" * 400_000 + b"needle\n")
    logs.append("gn7-0", 1, 0, b"b\n" * 400_000)
    log, place, found, read = MergedLog(logs, WORKERS, 1, ended=True), None, list[str](), list[int]()
    while True:
        page = log.after(place, 500, LineFilter("(a+)+$|needle", expression=True))
        found, place = found + [one.line.text for one in page.lines], page.after
        read.append(page.read)
        if not page.more:
            break
        assert len(read) < 100
    assert found == ["needle"]
    assert read == sorted(set(read))
    assert len(read) > 1
    assert page.read == page.size == 400_000 * 8 + 7


SOUGHT: tuple[tuple[dict[str, Any], bytes], ...] = (
    ({"text": "NEEDLE"}, rb"(?i)needle"),
    ({"text": "ünï"}, "(?:ü|Ü)n(?:ï|Ï)".encode()),
    ({"text": "n.*le$", "expression": True}, rb"(?im)n.*le$"),
    ({"errors": True}, rb"Error\b"),
    ({"text": "no", "errors": True}, rb"(?i:no).*Error\b|Error\b.*(?i:no)"),
)


@pytest.mark.parametrize("seed", range(3))
def test_a_search_by_blocks_finds_what_a_search_by_lines_finds(tmp_path: Path, seed: int) -> None:
    """Random logs with long lines and odd bytes, each asked in pages of several sizes."""
    dice = random.Random(seed)
    data = b""
    for _ in range(dice.randrange(1, 60)):
        kind = dice.random()
        if kind < 0.06:
            data += b"x" * dice.randrange(1_000, 400_000)
        elif kind < 0.3:
            data += dice.choice((b"Needle", b"in a \xff needle stack", "Ünï".encode(), b"ValueError: no"))
        else:
            data += b"plain\n" * dice.randrange(2_000)
        data += b"\n" * (dice.random() < 0.9)
    logs = Logs(tmp_path, 2**30)
    for begin in range(0, len(data), 50_000):
        logs.append("gn6-0", 1, begin, data[begin : begin + 50_000])
    log = MergedLog(logs, [(0, "gn6-0")], 1, ended=True)
    for asked, meaning in SOUGHT:
        expected = [
            number for number, line in enumerate(data.split(b"\n"), 1) if re.search(meaning, line, re.DOTALL)
        ]
        for context in (0, 2):
            place, numbers = None, list[int]()
            while True:
                page = log.after(place, dice.choice((1, 7, 500)), LineFilter(**asked), context)
                hits = [one.line for one in page.lines if one.line.match]
                numbers += [one.number for one in hits]
                assert all(data.count(b"\n", 0, one.offset) + 1 == one.number for one in hits)
                assert page.after != place
                place = page.after
                if not page.more:
                    break
            assert sorted(set(numbers)) == expected, asked


def test_the_lines_around_one_of_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        [(10, "gn6-0", b"early\n" * 900), (11, "gn7-0", b"a\nb\nc\n"), (12, "gn6-0", b"late\n" * 900)],
    )
    log = whole(tmp_path)
    target = log.of_line(1, 2)
    assert target is not None
    page = log.around(target, 6)
    assert [one.line.text for one in page.lines] == ["early", "early", "a", "b", "c", "late"]
    assert page.lines[3].place == target
    assert page.more
    assert page.before == page.lines[0].place


def test_ranks_are_chosen_by_numbers_and_spans() -> None:
    assert chosen_ranks("0-2, 7") == {0, 1, 2, 7}
    assert chosen_ranks("") is None
    assert chosen_ranks("x,3-") is None


@pytest.mark.parametrize("restarted", [False, True])
def test_new_lines_are_seen_after_older_ones_while_a_clock_that_was_set_back_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    wall, steady = 1_000_000.0, 50.0
    monkeypatch.setattr(time, "time", lambda: wall)
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    logs, seen, place = Logs(tmp_path, 64 * 1024), list[str](), None
    sizes = dict.fromkeys(("gn6-0", "gn7-0"), 0)
    for number in range(200):
        wall, steady = wall + 1, steady + 1
        if number == 100:
            wall -= 3600
            logs = Logs(tmp_path, 64 * 1024) if restarted else logs
        worker = "gn6-0" if number < 50 or number % 2 else "gn7-0"
        sizes[worker] = logs.append(worker, 1, sizes[worker], b"%d\n" % number)
        page = MergedLog(logs, WORKERS, 1, ended=False).after(place, 1000, LineFilter())
        seen, place = seen + [one.line.text for one in page.lines], page.after
    order = sorted(seen, key=int) if restarted else seen
    assert order[:190] == [str(number) for number in range(190)]
    logs = Logs(tmp_path, 64 * 1024)
    assert len(MergedLog(logs, WORKERS, 1, ended=True).after(None, 1000, LineFilter()).lines) == 200


def test_marks_of_a_long_log_are_thinned_out_and_never_go_back(tmp_path: Path) -> None:
    clock = ArrivalClock(tmp_path)
    for step in range(20_000):
        clock.record(step * 10, (step if step != 19_000 else 3) * 1000)
    marks = ArrivalMarks.read(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 200_000
    times = [marks.at_ms(offset) for offset in range(0, 200_000, 777)]
    assert times == sorted(times)
    assert marks.at_ms(199_995) == 19_999_000
    assert marks.offset_at(19_999_000) == 199_990
    assert marks.offset_at(10**12) > 200_000


def test_a_mark_that_a_full_disk_tore_spoils_none_of_those_that_follow(tmp_path: Path) -> None:
    clock = ArrivalClock(tmp_path)
    for step in range(1, 4):
        clock.record(step * 10, step * 1000)
    os.truncate(tmp_path / FILE, 40)  # two marks and a half
    clock = ArrivalClock(tmp_path)
    for step in range(4, 6):
        clock.record(step * 10, step * 1000)
    marks = ArrivalMarks.read(tmp_path)
    assert [marks.at_ms(offset) for offset in (15, 25, 45, 55)] == [1000, 2000, 4000, 5000]


def test_a_line_is_found_by_its_number(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 64 * 1024)
    data = b"".join(b"line %06d\n" % number for number in range(1, 5001))
    for begin in range(0, len(data), 10_000):
        logs.append("gn6-0", 1, begin, data[begin : begin + 10_000])
    log = MergedLog(logs, [(0, "gn6-0")], 1, ended=True)
    target = log.of_line(0, 3000)
    assert target is not None
    page = log.around(target, 10)
    assert [(one.line.number, one.line.text) for one in page.lines] == [
        (number, f"line {number:06}") for number in range(2995, 3005)
    ]
    assert log.of_line(0, 10**9) is None
