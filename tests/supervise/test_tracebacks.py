"""What a screen shows of tracebacks: launchers' in one line, equal ones of many ranks once, others whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from platform_launch.events import Event, in_text
from platform_launch.supervise import tracebacks
from platform_launch.supervise.tracebacks import TracebackFold

PREFIX = "[node 1] "
SITE = "/env/lib/python3.11/site-packages"
TORCHRUN = f"""Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "{SITE}/torch/distributed/run.py", line 1028, in main
    run(args)
  File "{SITE}/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:{" "}
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 21608)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
ACCELERATE = f"""Traceback (most recent call last):
  File "{SITE}/accelerate/commands/launch.py", line 1414, in launch_command
    simple_launcher(args)
  File "{SITE}/accelerate/commands/launch.py", line 897, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/env/bin/python3', 'train.py']' returned non-zero exit status 1.
"""
OF_A_SCRIPT = """Traceback (most recent call last):
  File "/job/train.py", line 4, in <module>
    subprocess.run(["ffmpeg"], check=True)
  File "/usr/lib/python3.11/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['ffmpeg']' returned non-zero exit status 1.
"""


def of_rank(rank: int, message: str = "lr=-1", line: int = 7) -> str:
    """Return what torch writes when an exception ends a rank: an empty line has no rank."""
    text = f"""Traceback (most recent call last):
  File "/job/train.py", line {line}, in <module>
    step()
KeyError: 'lr'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    step()
ValueError: {message}
"""
    return "\n".join(f"[rank{rank}]: {one}" if one else "" for one in text.split("\n"))


def prefixed(text: str) -> bytes:
    return "".join(f"{PREFIX}{line}\n" for line in text.splitlines()).encode()


def ours(event: Event) -> bytes:
    return f"{PREFIX}{in_text(event)}\n".encode()


def fold() -> TracebackFold:
    return TracebackFold(PREFIX, ours)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TORCHRUN, "torch raised ChildFailedError because a rank failed; the log has all 18 lines"),
        (ACCELERATE, "accelerate raised CalledProcessError because a rank failed; the log has all 6 lines"),
    ],
)
def test_the_traceback_of_a_launcher_is_one_line(text: str, said: str, size: int) -> None:
    screen = fold()
    # What comes before it has been shown when it begins: a program writes the opening line at once.
    shown = screen.feed(prefixed("Step 3/10"))
    opening, rest = prefixed(text).split(b"\n", 1)
    shown += screen.feed(opening + b"\n") + b"".join(map(screen.feed, pieces(rest, size)))
    shown += screen.feed(prefixed("bye")) + screen.finish()
    lines = shown.decode().splitlines()
    assert lines == [
        f"{PREFIX}Step 3/10",
        f"{PREFIX}[INFO] {said} [traceback-folded]",
        f"{PREFIX}bye",
    ]


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    "text",
    [
        OF_A_SCRIPT,
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\nTraceback (most recent call last):\n" + OF_A_SCRIPT,
        of_rank(0),
        of_rank(3).replace("ValueError", "  odd"),
        "50%|##   | 5/10 Traceback (most recent call last):\n" + OF_A_SCRIPT,
        OF_A_SCRIPT + "====\n" + OF_A_SCRIPT * 3,
    ],
)
def test_the_traceback_of_a_script_is_shown_whole(text: str, size: int) -> None:
    screen, data = fold(), prefixed("begin\n" + text + "end")
    assert b"".join(map(screen.feed, pieces(data, size))) + screen.finish() == data


@pytest.mark.parametrize("many", [True, False])
def test_a_summary_that_repeats_a_rank_s_tracebacks_belongs_to_it(many: bool) -> None:
    told = (
        OF_A_SCRIPT
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + OF_A_SCRIPT
    )
    text = TORCHRUN.replace(
        "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html", told
    )
    screen = TracebackFold(PREFIX, ours, many=many)
    shown = screen.feed(prefixed(text)) + screen.finish()
    assert shown.count(b"\n") == 1
    assert b"[traceback-folded]" in shown


def test_equal_tracebacks_of_ranks_are_shown_once() -> None:
    screen = fold()
    data = prefixed("".join(of_rank(rank) for rank in (2, 0, 1, 3)))
    shown = screen.feed(data) + screen.finish()
    values = {"ranks": "0-1,3", "first": 2, "difference": "", "count": 3}
    assert shown == prefixed(of_rank(2)) + ours(Event("traceback-repeated", "INFO", fields=values))


def test_ranks_that_write_into_each_other_are_told_apart() -> None:
    one, other = (prefixed(of_rank(rank)).splitlines(keepends=True) for rank in (0, 1))
    mixed = b"".join(line for pair in zip(one, other, strict=True) for line in pair)
    shown = fold().feed(mixed)
    assert shown.count(b"ValueError") == 1
    assert b"[rank1]" not in shown


@pytest.mark.parametrize("order", ["one after another", "line by line", "in bursts"])
def test_ranks_that_fail_before_the_process_group_is_there_are_shown_once(order: str) -> None:
    lines = OF_A_SCRIPT.splitlines()
    written = {
        "one after another": lines * 4,
        "line by line": [line for line in lines for _ in range(4)],
        "in bursts": [*lines[:3], *lines, *lines[3:], *lines, *lines[:1], *lines[1:]],
    }[order]
    screen = TracebackFold(PREFIX, ours, many=True)
    shown = b"".join(screen.feed(prefixed(line)) for line in written) + screen.finish()
    again = Event("traceback-again", "INFO", fields={"count": 3, "difference": ""})
    assert shown == prefixed(OF_A_SCRIPT) + ours(again)


def test_different_tracebacks_in_each_other_stay_as_they_are() -> None:
    other = OF_A_SCRIPT.replace("line 4", "line 5").splitlines()
    written = [line for pair in zip(OF_A_SCRIPT.splitlines(), other, strict=True) for line in pair]
    screen = TracebackFold(PREFIX, ours, many=True)
    assert screen.feed(prefixed("\n".join(written))) + screen.finish() == prefixed("\n".join(written))


def test_other_numbers_are_named_and_another_place_is_another_traceback() -> None:
    screen = fold()
    shown = screen.feed(prefixed(of_rank(0, "peer 10.0.0.1:4711") + of_rank(1, "peer 10.0.0.2:4712")))
    shown += screen.feed(prefixed(of_rank(2, "peer 10.0.0.1:4711", line=8))) + screen.finish()
    text = shown.decode()
    assert text.count("ValueError") == 2
    assert "rank 1: the same traceback as rank 0, with other numbers" in text


def test_a_rank_that_repeats_its_own_traceback_is_shown_each_time() -> None:
    screen, data = fold(), prefixed(of_rank(0) * 2)
    assert b"".join(screen.feed(prefixed(of_rank(0))) for _ in range(2)) + screen.finish() == data


def test_repeats_are_named_before_the_launcher_reports() -> None:
    screen = fold()
    lines = screen.feed(prefixed(of_rank(0) + of_rank(1)) + prefixed(TORCHRUN)).decode().splitlines()
    assert [line.rsplit("[", 1)[1] for line in lines[-2:]] == ["traceback-repeated]", "traceback-folded]"]
    assert screen.due == float("inf")


def test_what_is_held_is_shown_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = fold()
    begun = prefixed("Traceback (most recent call last):")
    assert screen.feed(begun + b"[node 1]   File") == b""
    assert screen.flush() == b""
    now = screen.due
    monkeypatch.setattr(tracebacks, "time", type("Clock", (), {"monotonic": lambda: now}))
    assert screen.flush() == begun + b"[node 1]   File"
    assert screen.due == float("inf")
    assert screen.feed(b' "x"\n') == b' "x"\n'


def test_a_traceback_without_end_is_not_held() -> None:
    screen, frames = fold(), prefixed('  File "x.py", line 1, in f') * 5000
    shown = screen.feed(prefixed("Traceback (most recent call last):") + frames) + screen.finish()
    assert shown.endswith(frames)


def test_output_without_tracebacks_is_handed_on_as_it_is() -> None:
    data = prefixed("Step 1/10") * 1000
    assert fold().feed(data) is data
