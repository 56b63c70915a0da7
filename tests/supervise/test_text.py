"""What happens to output bytes on their way, however the reads cut them."""

from __future__ import annotations

import pytest

from platform_launch.supervise.text import LinePrefix, LogText, WholeLines


def cuts(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_prefix_opens_each_line_and_each_redraw_however_reads_are_cut(size: int) -> None:
    prefix = LinePrefix("[node 1] ")
    data = b"start\n\r 10%\r 20%\nwindows\r\nlast"
    assert b"".join(prefix.feed(piece) for piece in cuts(data, size)) == (
        b"[node 1] start\n[node 1] \r[node 1]  10%\r[node 1]  20%\n[node 1] windows\r\n[node 1] last"
    )


def test_prefix_waits_for_the_next_line_to_begin() -> None:
    prefix = LinePrefix("> ")
    assert prefix.feed(b"one\n") == b"> one\n"
    assert prefix.at_line_start
    assert prefix.feed(b"two") == b"> two"
    assert not prefix.at_line_start


def test_no_prefix_leaves_output_alone() -> None:
    assert LinePrefix("").feed(b"a\rb\nc") == b"a\rb\nc"


def test_log_passes_plain_text_through_at_once() -> None:
    text = LogText()
    assert text.feed(b"half a li") == b"half a li"
    assert text.feed(b"ne\n") == b"ne\n"


def test_log_keeps_one_state_of_a_progress_bar_every_few_seconds_and_the_last() -> None:
    clock = Clock()
    text = LogText(interval_s=10.0, clock=clock)
    written = b""
    for percent in range(101):
        written += text.feed(b"\r%3d%%" % percent)
        clock.now += 0.25
    written += text.feed(b"\ndone\n")
    assert written == b"  0%\n 40%\n 80%\n100%\ndone\n"


def test_log_keeps_the_state_of_a_bar_that_never_ended() -> None:
    text = LogText(clock=Clock())
    assert text.feed(b"\r 1%") == b" 1%\n"
    assert text.feed(b"\r 2%\r 3%") == b""
    assert text.finish() == b" 3%\n"
    assert text.finish() == b""


def test_log_understands_returns_at_the_end_of_a_redraw() -> None:
    text = LogText(clock=Clock())
    assert text.feed(b"10%\r") + text.feed(b"20%\r") + text.feed(b"30%\r\nnext\n") == b"10%\n30%\nnext\n"


def test_log_does_not_lose_what_stood_before_a_redraw() -> None:
    text = LogText(clock=Clock())
    assert text.feed(b"Epoch 1") + text.feed(b"\rEpoch 2\n") == b"Epoch 1\nEpoch 2\n"


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_log_reads_windows_line_ends_as_line_ends(size: int) -> None:
    text = LogText(interval_s=float("inf"), clock=Clock())
    written = b"".join(text.feed(piece) for piece in cuts(b"one\r\ntwo\r\n", size))
    assert written.replace(b"\n", b"") == b"onetwo"
    assert LogText().feed(b"one\r\ntwo\r\n") == b"one\ntwo\n"


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_log_drops_colours_links_and_cursor_moves(size: int) -> None:
    text = LogText()
    data = b"\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1b[Aup\x1b[K\n"
    assert b"".join(text.feed(piece) for piece in cuts(data, size)) == b"red link up\n"


def test_log_holds_little_of_a_line_without_end() -> None:
    text = LogText(clock=Clock())
    piece = b"\r" + b"x" * 100_000
    assert len(b"".join(text.feed(piece) for _ in range(20))) >= 20 * 100_000
    assert len(text.finish()) < 70_000


def test_whole_lines_join_what_reads_cut() -> None:
    lines = WholeLines()
    assert [lines.feed(piece) for piece in (b"a", b"b\nc", b"\n", b"d")] == [b"", b"ab\n", b"c\n", b""]
    assert lines.finish() == b"d\n"
    assert lines.finish() == b""


def test_whole_lines_give_out_an_endless_line_in_pieces() -> None:
    lines = WholeLines()
    given = b"".join(lines.feed(b"x" * 50_000) for _ in range(40)) + lines.finish()
    assert given.count(b"x") == 2_000_000
    assert max(map(len, given.split(b"\n"))) < 200_000
