"""Logs that are long, broken or mean: bounded memory, no escape reaches the terminal."""

from __future__ import annotations

import io
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.why.explaining import explain
from platform_launch.why.lines.line import Line, parse
from platform_launch.why.lines.literals import Guarded
from platform_launch.why.lines.scan import RawLine, Scanner
from platform_launch.why.lines.vocabulary import has_telling_word
from platform_launch.why.reading import reader
from platform_launch.why.sources import LogSource
from tests.lab.needs import takes_long
from tests.why.conftest import Explain

# Some of the words that failures are told with: what the others are moves nothing here.
STEMS = """
    abort assert barrier broken cannot certificate connect corrupt deadline denied driver exceed exhausted
    illegal invalid kernel missing refused timeout unable
""".split()  # noqa: SIM905
ERROR = b"RuntimeError: CUDA error: invalid device ordinal\n"


def scanned(data: bytes) -> list[RawLine]:
    return list(Scanner(io.BytesIO(data)).lines())


def test_line_numbers_are_those_of_an_editor_across_blocks_and_carriage_returns() -> None:
    filler = b"Step 1 | Loss: 0.1\n" * 100_000
    bars = b"\r 1%|#\r 2%|##\r 3%|###\n"
    found = [line for line in scanned(filler + bars + ERROR + filler + ERROR) if b"CUDA" in line.data]
    assert [line.number for line in found] == [100_002, 200_003]


def test_crlf_does_not_count_twice() -> None:
    assert [line.number for line in scanned(b"a\r\nb\r\n" + ERROR)] == [1, 2, 3]


def test_hundred_megabytes_without_a_line_end_are_bounded(explain_text: Explain) -> None:
    class Endless:
        left = 100

        def read(self, size: int, /) -> bytes:
            self.left -= 1
            return b"x" * (1 << 20) if self.left > 0 else b""

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert explain([LogSource("endless", Endless())]).kind == "nothing"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_message_inside_a_huge_line_is_found(explain_text: Explain) -> None:
    verdict = explain_text(b"y" * 300_000 + b" Duplicate GPU detected : rank 1 " + b"z" * 300_000)
    assert verdict.cause == "duplicate_gpu"


@pytest.mark.parametrize("seed", range(5))
def test_binary_junk_confuses_nothing(explain_text: Explain, seed: int) -> None:
    junk = random.Random(seed).randbytes(200_000)
    assert explain_text(junk + b"\n" + ERROR + junk).cause == "invalid_device"


def test_empty_log_says_that_it_found_nothing(explain_text: Explain) -> None:
    verdict = explain_text("")
    assert verdict.kind == "nothing"
    assert verdict.lines()[0] == "cause:      unknown: no line of these logs looks like an error"


@pytest.mark.parametrize("cut", [1, 30, 100, 200, 350])
def test_log_that_ends_in_the_middle_is_read_as_far_as_it_goes(
    logs: Path, explain_text: Explain, cut: int
) -> None:
    data = (logs / "exception_one_rank.log").read_bytes()
    verdict = explain_text(data[:cut])
    assert verdict.kind in ("nothing", "unknown", "suspect")
    assert verdict.cause in (None, "traceback_cut")


def test_colours_do_not_hide_a_message(explain_text: Explain) -> None:
    verdict = explain_text("\x1b[31mRuntimeError: \x1b[1mCUDA error: invalid device\x1b[0m ordinal\x1b[0m\n")
    assert verdict.cause == "invalid_device"


def test_no_control_character_of_a_log_reaches_the_terminal(explain_text: Explain) -> None:
    verdict = explain_text(
        "CUDA error: invalid device ordinal \x1b]0;owned\x07 \x1b[2J \x9b31m \x08\x08 \u202egnp\n"
    )
    printed = "\n".join(verdict.lines())
    assert verdict.cause == "invalid_device"
    assert not any(ord(sign) < 32 and sign != "\n" for sign in printed)
    assert "\u202e" not in printed
    assert "\x9b" not in printed


def test_name_of_a_log_is_made_harmless_too(explain_text: Explain) -> None:
    verdict = explain([LogSource("a\x1b[31m\nb.log", io.BytesIO(ERROR))])
    assert not any("\x1b" in line or "\n" in line for line in verdict.lines())


def test_evidence_is_cut_to_a_readable_length(explain_text: Explain) -> None:
    verdict = explain_text(b"RuntimeError: CUDA error: invalid device ordinal " + b"w" * 5000 + b"\n")
    assert len(verdict.evidence[0].text) <= 400


def test_line_without_end_and_time_is_parsed() -> None:
    line = parse(1, b"[2026-02-30 99:99:99,000] x")
    assert line.text == "x"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the lines that were read closely."""
    lengths: list[int] = []

    def counted(number: int, data: bytes, *known: Any) -> Line:
        lengths.append(len(data))
        return parse(number, data, *known)

    monkeypatch.setattr(reader, "parse", counted)
    return lengths


def test_of_many_lines_that_only_sound_like_errors_few_are_read_closely(
    explain_text: Explain, read: list[int]
) -> None:
    log = b"".join(
        b"WARNING could not fail to find error %d in cache %d\n" % (n, n * 7) for n in range(300_000)
    )
    verdict = explain_text(log + ERROR)
    assert (verdict.cause, verdict.evidence[0].line) == ("invalid_device", 300_001)
    assert len(read) < 30_000  # those of the first block


@takes_long
@pytest.mark.parametrize("words_a_line", [8, 3000])
def test_of_errors_that_are_all_worded_differently_few_are_read_closely(
    explain_text: Explain, read: list[int], words_a_line: int
) -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(5000)]
    words[:200] = (stem + letter for stem in STEMS for letter in "bcdfghjkmn")
    assert all(has_telling_word(word.encode()) for word in words[:200])
    lines = (
        " ".join([*chance.choices(words, k=words_a_line), "error"]) for _ in range(600_000 // words_a_line)
    )
    assert explain_text("\n".join(lines).encode() + b"\n" + ERROR).cause == "invalid_device"
    assert sum(read) < 1 << 20


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    lines = b"".join(
        b"[node 0] Step %d/100000 | Loss: 0.1 | sample: %s\n" % (n, b"abcdefghij"[n % 7 :])
        for n in range(20_000)
    )
    peaks = []
    for copies in (2, 60):
        log = tmp_path / f"{copies}.log"
        with log.open("wb") as file:
            for _ in range(copies):
                file.write(lines)
        code = (
            "import resource,sys;from pathlib import Path;"
            "from platform_launch.why.explaining import explain_file;"
            "explain_file(Path(sys.argv[1]));print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code, log], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 8 * 1024


EVERY_PATTERN = """
import re, resource, time
from platform_launch.why.reading import error_lines
from platform_launch.why.messages.exception_rules import rules
from platform_launch.why.lines.line import parse
from platform_launch.why.messages.signatures import catalogue
parser = getattr(re, "_parser", None) or __import__("sre_parse")
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

def sample(nodes, which):  # a text that a pattern matches, in pieces; "" where more of the same could stand
    for kind, value in nodes:
        if str(kind) == "LITERAL":
            yield chr(value)
        elif str(kind) in ("SUBPATTERN", "BRANCH"):
            inner = value[-1] if str(kind) == "SUBPATTERN" else value[1][which % len(value[1])]
            yield from sample(inner, which)
        elif str(kind) in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from [*sample(value[2], which), ""] * max(value[0], 1)
        elif str(kind) in ("ANY", "IN", "NOT_LITERAL"):
            named, first = value[0] if str(kind) == "IN" else ("ANY", None)
            first = first[0] if str(named) == "RANGE" else first
            signs = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " "}
            yield chr(first) if str(named) in ("LITERAL", "RANGE") else signs.get(str(first), "a")

def seconds(search, begin, again, length):
    text = (begin + again * length)[:length]
    since = time.process_time()
    search(text)
    return time.process_time() - since

patterns = [p for s in catalogue().signatures for p in (*s.patterns, *s.below)]
patterns += [p for rule in rules() for p in (rule.message, rule.code) if p]
for pattern in patterns:
    print(pattern, flush=True)
    search = re.compile(pattern).search
    for pieces in {(*sample(parser.parse(pattern), which), "") for which in range(6)}:
        begins = {"".join(pieces[:end]) for end, piece in enumerate(pieces) if not piece} - {""}
        for begin, again in {pair for begin in begins for pair in ((begin, begin), (begin, begin[-1]))}:
            if seconds(search, begin, again, 2048) > 0.1:  # of less, even the cube is soon over
                short, long = (min(seconds(search, begin, again, n) for _ in range(3)) for n in (1024, 2048))
                assert long < 6 * short, f"as the cube of {begin!r} and {again!r}: {short} s, {long} s"
print("error_lines", flush=True)
for begin in ("error ", "_error", "no ", "--a", "process failed", ": ", "panicked at ", "level='", " ", "a"):
    line = parse(1, (begin * (8192 // len(begin))).encode())
    error_lines.hints_at_error(line), error_lines.gives_reason(line), error_lines.introduces(line.text)
"""


@takes_long
def test_no_pattern_takes_forever_on_a_line_that_repeats_its_beginning() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_PATTERN], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-1:]


def test_pattern_is_searched_everywhere_in_a_line_and_spans_no_more_than_a_stretch() -> None:
    found = Guarded("rank (?P<rank>\\d+).* failed")
    near, far = "rank 3 of 8 failed", f"rank 3 {'x' * 4096} failed"
    assert all(found.search("y" * at + near) for at in range(0, 8192 - len(near), 7))
    assert found.search(far) is None
