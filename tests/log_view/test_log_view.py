"""Logs of several nodes as one: by time, with levels, from files that grow, turn and lack their end."""

from __future__ import annotations

import io
import json
import os
import random
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from platform_launch.cli.logs import command
from platform_launch.console import languages
from platform_launch.errors import InputError, LaunchError, UsageError
from platform_launch.events import Event
from platform_launch.log_view.blocks import line_blocks
from platform_launch.log_view.entry import EntryReader, LogEntry
from platform_launch.log_view.follow import GrowingLog, followed
from platform_launch.log_view.launch import CauseLine, NodeLog, find_logs, missing_nodes, root_cause_line
from platform_launch.log_view.merge import Shown
from platform_launch.log_view.selection import Selection, parse_pattern
from platform_launch.log_view.view import LogView
from tests.lab.waiting import LIMIT_S, until

NAMES = ("train_job_node0_20261122-114908.log", "train_job_node1_20261122-134908.log")


def event(time: str, node: int, event_id: str, /, **fields: object) -> dict[str, object]:
    level = "ERROR" if event_id in ("verdict", "node-failed", "training-failed") else "INFO"
    return {
        "time": f"2026-11-22T{time}Z",
        "node_rank": node,
        "id": event_id,
        "level": level,
        "fields": fields,
    }


def write(folder: Path, node: int, lines: Sequence[str], events: Sequence[dict[str, object]] = ()) -> Path:
    log = folder / NAMES[node]
    log.write_text("".join(f"{line}\n" for line in lines))
    if events:
        log.with_suffix(".events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    return log


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A launch of three nodes, of which one left no log; the clocks of the others are two zones apart."""
    opened = {"nnodes": 3}
    write(
        tmp_path,
        0,
        [
            "[node 0] 11:49:09 [INFO] platform_launch 0.1.0: node 0 of 3, job job [launch-opened]",
            "[node 0] step 1",
            "[node 0] 11:49:38 [WARN] training was stopped [training-followed node=1 exit_code=137]",
        ],
        [
            event("11:49:09.100", 0, "launch-opened", **opened),
            event("11:49:38.000", 0, "training-followed", node=1, exit_code=137),
        ],
    )
    log = write(
        tmp_path,
        1,
        [
            "[node 1] 13:49:08 [INFO] platform_launch 0.1.0: node 1 of 3, job job [launch-opened]",
            "[node 1] [rank1]: Traceback (most recent call last):",
            '[node 1] [rank1]:   File "/x/ddp.py", line 10, in <module>',
            "[node 1] [rank1]: RuntimeError: boom",
            "[node 1] 13:49:36 [ERROR] node 1: the training ended [node-failed node=1 exit_code=1]",
            "[node 1] 13:49:36 [ERROR] cause:  RuntimeError: boom [verdict]",
            "[node 1] 13:49:36 [ERROR] seen:   line 4 [verdict]",
            "[node 1] 13:49:37 [ERROR] training ended with exit code 1 [training-failed exit_code=1]",
        ],
    )
    evidence = [{"log": f"/elsewhere/{log.name}", "line": 4, "text": "RuntimeError: boom"}]
    verdict = {"title": "RuntimeError: boom", "cause": "python_exception", "fix": "", "evidence": evidence}
    events = [
        event("11:49:08.900", 1, "launch-opened", **opened),
        event("11:49:36.500", 1, "node-failed", node=1),
        event("11:49:36.600", 1, "verdict", **verdict),
        event("11:49:37.000", 1, "training-failed", exit_code=1),
    ]
    log.with_suffix(".events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    return tmp_path


def shown(*arguments: str) -> list[str]:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False, catch_exceptions=False)
    assert isinstance(result.output, str)
    return result.stdout.splitlines()


def test_lines_of_all_nodes_come_by_time_also_from_clocks_of_other_zones(failed: Path) -> None:
    lines = shown(str(failed))
    assert lines[0].startswith("[node 1] 13:49:08")
    assert lines.index("[node 0] step 1") < lines.index(
        "[node 1] 13:49:36 [ERROR] node 1: the training ended [node-failed node=1 exit_code=1]"
    )
    assert lines[-1].startswith("[node 0] 11:49:38")


def test_root_cause_is_marked_by_the_events_of_the_node_that_failed_first(failed: Path) -> None:
    lines = shown(str(failed))
    at = lines.index("[node 1] [rank1]: RuntimeError: boom")
    assert lines[at + 1] == "[node 1] ^^^ cause: RuntimeError: boom [python_exception]"
    assert sum("^^^" in line for line in lines) == 1
    place = root_cause_line(find_logs([str(failed)]))
    assert place is not None
    assert (place.log, place.number) == (NAMES[1], 4)


def test_root_cause_is_named_at_the_end_where_its_line_is_not_among_those_wanted(failed: Path) -> None:
    assert shown(str(failed), "--node", "0")[-1].startswith(f"cause ({NAMES[1]}:4): RuntimeError")
    assert shown(str(failed), "--grep", "step")[-1].startswith("cause (")


def test_a_verdict_is_called_what_why_calls_it(failed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = (failed / NAMES[1]).with_suffix(".events.jsonl")
    lost = '"title": "a connection to another process was lost", "cause": "connection_lost", '
    lost += '"kind": "consequence", "fix": "Look."'
    file.write_text(
        file.read_text().replace(
            '"title": "RuntimeError: boom", "cause": "python_exception", "fix": ""', lost
        )
    )
    (mark,) = [line for line in shown(str(failed)) if "^^^" in line]
    assert (
        mark
        == "[node 1] ^^^ first sign: a connection to another process was lost [connection_lost]; fix: Look."
    )
    monkeypatch.setattr(languages, "_chosen", ["zh"])
    (mark,) = [line for line in shown(str(failed)) if "^^^" in line]
    assert mark.startswith("[node 1] ^^^ 最早迹象：与另一个进程的连接断开 [connection_lost]；处理办法：")


def test_a_selection_that_no_line_meets_says_so(failed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command.main([str(failed), "--grep", "step"], standalone_mode=False)
    assert "[no-line-matches]" not in capfd.readouterr().err
    command.main([str(failed), "--grep", "zzz"], standalone_mode=False)
    assert "no line matches [no-line-matches]" in capfd.readouterr().err


def test_no_cause_is_marked_without_events_whatever_the_lines_say(failed: Path) -> None:
    for path in failed.glob("*.jsonl"):
        path.unlink()
    assert not [line for line in shown(str(failed)) if "^^^" in line]


def test_nodes_without_a_log_are_named(failed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert missing_nodes(find_logs([str(failed)])) == [2]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("[node 3] 12:00:00 [WARN] a fact [id]", "WARN"),
        ("12:00:00 [SUCCESS] done", "SUCCESS"),
        ("error: no such file [refused-input]", "ERROR"),
        ("W1122 11:49:35.933000 4635 torch/x.py:1002] told to end", "WARN"),
        ("[rank3]:E1122 11:49:35.933000 4635 torch/x.py:1002] failed", "ERROR"),
        ("vm:1:2 [0] NCCL WARN Call to connect failed", "WARN"),
        ("/x/y.py:3: FutureWarning: use z", "WARN"),
        ("2026-11-22 11:00:00,123 - ERROR - no data", "ERROR"),
        ("torch.OutOfMemoryError: CUDA out of memory", "ERROR"),
        ("Step 3/9 | Loss 0.1", "INFO"),
        ("INFO: 3 ERRORs were mended", "INFO"),
        ("the Error of the mean is 3", "INFO"),
    ],
)
def test_level_is_read_as_its_writer_told_it(line: str, level: str) -> None:
    assert EntryReader([], None).read(line.encode()).level == level


def test_a_traceback_is_an_error_up_to_what_was_raised() -> None:
    reader = EntryReader([], None)
    text = 'a\nTraceback (most recent call last):\n  File "x"\n    f()\nmine.Odd: 3\nb'
    assert [reader.read(line.encode()).level for line in text.split("\n")] == ["INFO", *["ERROR"] * 4, "INFO"]


def test_times_without_a_date_pass_midnight_and_durations_are_no_times() -> None:
    reader = EntryReader([], datetime(2026, 11, 22, 23, 59, 50))
    texts = ("23:59:58 [INFO] a", "00:10:15 left", "00:00:03 [INFO] b", "2031-01-01 00:00:00 ends the offer")
    times = [reader.read(text.encode()).time_s for text in texts]
    assert [later - times[0] for later in times] == [0, 0, 5, 5]


def test_an_event_that_was_not_read_yet_does_not_turn_the_clock_back() -> None:
    known = Event("log-opened", "INFO", time="2026-11-22T11:49:09.457Z")
    reader = EntryReader([known], datetime(2026, 11, 22, 11, 49, 9))
    first = reader.read(b"11:49:09 [INFO] log: a [log-opened]").time_s
    assert reader.read(b"11:59:09 [INFO] log: a [log-opened]").time_s - first > 599


def test_a_redrawn_line_shows_its_last_state_and_controls_do_not_reach_the_terminal() -> None:
    reader = EntryReader([], None)
    assert reader.read(b"1%\r50%\r100%\r").text == "100%"
    assert reader.read(b"\x1b[31mred\x1b[0m \x07 \xff").text == "red \\x07 �"


def test_lines_without_end_come_in_pieces_and_an_unfinished_one_is_kept() -> None:
    lines = [
        line for block in line_blocks(io.BytesIO(b"a\nb" + b"x" * 3_000_000)) for line in block.split(b"\n")
    ]
    assert lines[0] == b"a"
    assert b"".join(lines[1:]) == b"b" + b"x" * 3_000_000
    assert len(lines) > 2


LINES = (
    *("[node 0] step 1", "step 2", "", "epoch 3", "0.25 loss", "[rank0]: x", "[node 0] [rank1]: y", "(a)"),
    *(
        "  indented",
        "[node 0]   indented",
        "[rank0]:  File",
        "\ttab",
        "50%\r100%\r",
        "\x1b[31mred\x1b[0m",
        "第",
    ),
    *("WARNING: a", "UserWarning: b", "x ERROR y", "ValueError: c", "[node 0] KeyboardInterrupt", "error: d"),
    *(
        "Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        "INFO e",
        "hint: f",
    ),
    *("2026-11-22 11:50:00,5 - INFO - g", "[2026-11-22 11:50:09] h", "2026/11/22 11:50:30 FATAL i", "2026 j"),
    *("[node 0] 11:51:00 [INFO] k [log-opened]", "11:51:07 [WARN] l", "[SUCCESS] m", "== 1/5 n ==="),
    *("I1122 11:52:00.5 1 o", "E1122 11:52:01.5 1 p", "[W1122 11:52:02.5 q", "[node 0] 11:52:09 == 2/5 r =="),
)


@pytest.mark.parametrize("seed", range(8))
def test_many_lines_at_once_are_read_as_each_by_itself(seed: int) -> None:
    chosen = random.Random(seed)
    lines = [chosen.choice(LINES) for _ in range(600)]
    began = datetime(2026, 11, 22, 11, 49, 9)
    alone, together, worse, untimed = (EntryReader([], began) for _ in range(4))
    expected = [alone.read(line.encode()) for line in lines]
    blocks = ["\n".join(lines[at : at + 100]).encode() for at in range(0, 600, 100)]
    found = [one for block in blocks for run in together.read_block(block) for one in run.lines()]
    assert found == expected
    assert (together.number, together.time_s) == (alone.number, alone.time_s)
    runs = [run for block in blocks for run in untimed.read_block(block, times_wanted=False)]
    assert len(runs) < sum(1 for line in expected if line.text)
    assert [one._replace(time_s=0.0) for run in runs for one in run.lines()] == [
        one._replace(time_s=0.0) for one in expected
    ]
    told = [run for block in blocks for run in worse.read_block(block, runs_wanted=False)]
    selection = Selection("WARN")
    assert list(selection.of(told)) == list(selection.of(expected))


def test_a_run_of_lines_is_labelled_and_searched_line_by_line_and_the_cause_within_it_is_marked() -> None:
    log = NodeLog(Path(NAMES[0]), 0, "[node 0] ", None)
    run = LogEntry(0.0, 5, "INFO", "[node 0] a\nb\n[node 0] c")
    plain = LogView(colours=False, labelled=True, cause=None)
    assert plain.lines(Shown(log, run)) == ["[node 0] a\n[node 0] b\n[node 0] c"]
    assert LogView(colours=False, labelled=False, cause=None).lines(Shown(log, run)) == [run.text]
    (found,) = Selection(pattern=parse_pattern("^b$")).of([run])
    assert (found.number, found.text) == (6, "b")
    cause = CauseLine(NAMES[0], 6, Event("verdict", "ERROR", fields={"title": "it broke"}))
    marked = LogView(colours=False, labelled=False, cause=cause)
    assert marked.lines(Shown(log, run))[1:3] == ["b", "^^^ cause: it broke"]


def test_last_lines_of_all_logs_are_the_last_by_time(failed: Path) -> None:
    lines = shown(str(failed), "--tail", "3", "--grep", "exit_code")
    assert [line[6] for line in lines[:3]] == ["1", "1", "0"]
    assert shown(str(failed), "-n", "1") == [shown(str(failed))[-1], *shown(str(failed), "-n", "1")[1:]]


def test_marked_line_has_its_number_also_where_only_the_end_is_read(failed: Path) -> None:
    log = failed / NAMES[1]
    padding = "".join(f"[node 1] step {number}\n" for number in range(5000))
    log.write_text(padding + log.read_text())
    file = log.with_suffix(".events.jsonl")
    file.write_text(file.read_text().replace('"line": 4', '"line": 5004'))
    assert "^^^ cause" in "\n".join(shown(str(log), "-n", "6"))


@pytest.mark.parametrize(
    "arguments", [["--node", "first"], ["--grep", "("], ["-", "x.log"], ["-", "--follow"]]
)
def test_options_that_cannot_be_meant_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        shown(*arguments)


def test_what_is_neither_log_nor_job_is_refused_with_the_jobs_that_are_there(failed: Path) -> None:
    with pytest.raises(InputError, match="contains no log of job 'jib', only of job"):
        find_logs(["jib"], failed)
    with pytest.raises(InputError, match="does not exist"):
        find_logs(["logs/none.log"], failed)
    with pytest.raises(LaunchError, match="is not a file"):
        find_logs(["job"], failed / "none")
    with pytest.raises(LaunchError, match="no logs yet"):
        find_logs([], failed / "none")
    assert [log.node for log in find_logs(["job"], failed)] == [0, 1]
    assert [log.node for log in find_logs([], failed)] == [0, 1]


def test_a_folder_of_logs_is_named_as_a_launch_names_it(failed: Path) -> None:
    here = ["--log-dir", str(failed)]
    assert shown(*here) == shown(str(failed))
    assert shown("job", *here) == shown(str(failed))


def test_standard_input_is_read_line_by_line() -> None:
    result = CliRunner().invoke(command, ["-", "--level", "WARN"], input="a\nWARNING: b\nERROR c")
    assert result.output == "WARNING: b\nERROR c\n"


def test_a_growing_log_is_read_by_whole_lines_through_rotation_and_truncation(tmp_path: Path) -> None:
    log = write(tmp_path, 0, ["one"])
    growing = GrowingLog(find_logs([str(log)])[0])
    assert [entry.text for entry in growing.backlog()] == ["one"]
    with log.open("a") as file:
        file.write("tw")
    assert growing.new_entries() == []
    with log.open("a") as file:
        file.write("o\n")
    assert [entry.text for entry in growing.new_entries()] == ["two"]
    log.rename(tmp_path / "old")
    assert growing.new_entries() == []
    with (tmp_path / "old").open("a") as file:
        file.write("last of the old\n")
    log.write_text("first of the new\n")
    assert [entry.text for entry in growing.backlog()] == ["last of the old", "first of the new"]
    os.truncate(log, 0)
    assert growing.new_entries() == []
    log.write_text("anew\n")
    assert [entry.text for entry in growing.new_entries()] == ["anew"]
    growing.close()


def test_following_ends_when_all_nodes_have_ended_also_one_that_comes_later(tmp_path: Path) -> None:
    two = {"nnodes": 2}
    begun = [event("11:49:09.000", 0, "launch-opened", **two)]
    log = write(tmp_path, 0, ["[node 0] begun"], begun)
    seen: list[str] = []

    def follow() -> None:
        coming = followed(lambda: find_logs([str(tmp_path)]), Selection(pattern=parse_pattern("e")))
        seen.extend(one.entry.text for one in coming)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    until(lambda: seen == ["[node 0] begun"])
    done = event("11:50:00.000", 0, "training-finished")
    with log.open("a") as file:
        file.write("[node 0] ended, with an unfinished line")
    # Added as a launcher adds it: a file that is written anew is empty for a moment, and read once more then.
    with log.with_suffix(".events.jsonl").open("a") as file:
        file.write(json.dumps(done) + "\n")
    write(tmp_path, 1, ["[node 1] came late"], [event("11:49:10.000", 1, "launch-opened", **two), done])
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert sorted(seen) == ["[node 0] begun", "[node 0] ended, with an unfinished line", "[node 1] came late"]


def test_following_waits_for_the_first_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs"
    done = [
        event("11:49:09.000", 0, "launch-opened", nnodes=1),
        event("11:50:00.000", 0, "training-finished"),
    ]

    def write_meanwhile(_: float) -> None:
        folder.mkdir()
        write(folder, 0, ["[node 0] begun"], done)

    monkeypatch.setattr("platform_launch.cli.logs.time", SimpleNamespace(sleep=write_meanwhile))
    result = CliRunner().invoke(command, ["--follow", "--log-dir", str(folder)], standalone_mode=False)
    assert "no logs yet" in result.stderr
    assert "waiting for the first log" in result.stderr
    assert result.stdout == "[node 0] begun\n"
    with pytest.raises(InputError, match="does not exist"):
        shown("--follow", str(tmp_path / "none.log"))


def test_a_level_leaves_of_a_traceback_the_line_that_names_the_exception(
    tmp_path: Path,
) -> None:
    text = """\
[node 0] [rank0]: Traceback (most recent call last):
[node 0] [rank0]:   File "/job/train.py", line 9, in <module>
[node 0] [rank0]:     step()
[node 0] [rank0]: RuntimeError: shapes do not fit
[node 0]   an indented line
[node 0] 10:00:00 [WARN] memory is low
"""
    log = tmp_path / "a.log"
    log.write_text(text)
    for level in ("WARN", "ERROR"):
        shown = CliRunner().invoke(command, ["--level", level, str(log)]).stdout
        assert "RuntimeError: shapes" in shown
        assert "Traceback" not in shown
        assert "step()" not in shown
    assert "step()" in CliRunner().invoke(command, [str(log)]).stdout
