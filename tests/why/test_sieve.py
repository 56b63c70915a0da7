"""What is skipped of big logs changes no answer. Big is what is a few MiB here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from platform_launch.why import explain_paths, scan, sieve
from platform_launch.why.scan import STEMS, WHOLE_WORDS
from platform_launch.why.signatures import SignatureRole, catalogue
from platform_launch.why.verdict import Verdict

FAILURE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 88, in step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def quiet(step: int) -> str:
    return f"[rank{step % 8}]: step {step} loss {step / 7:.4f}\n"


def noisy(step: int) -> str:
    return f"[rank{step % 8}]: ERROR sample {step} failed: it has an odd length\n"


pytestmark = pytest.mark.skipif(not sieve.available(), reason="needs GNU grep and wc")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_BIG_BYTES", 1 << 18), ("_STRETCH_BYTES", 1 << 16), ("_BLOCK_BYTES", 1 << 16)):
        monkeypatch.setattr(scan, name, size)
    monkeypatch.setattr(scan, "_TAIL_BYTES", 1 << 12)


def log(folder: Path, lines: Callable[[int], str], count: int, failure_at: float) -> Path:
    path = folder / "train.log"
    at = int(count * failure_at)
    path.write_text("".join([*map(lines, range(at)), FAILURE, *map(lines, range(at, count))]))
    return path


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, Verdict]:
    """Return the answers with the sieve and without."""
    sieved = explain_paths([path])
    with monkeypatch.context() as patch:
        patch.setattr(scan, "_BIG_BYTES", 1 << 40)
        return sieved, explain_paths([path])


@pytest.mark.parametrize("failure_at", [0.0, 0.001, 0.5, 0.97, 1.0])
def test_failure_is_found_wherever_it_stands_and_by_its_line(
    failure_at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sieved, whole = both(log(tmp_path, quiet, 20_000, failure_at), monkeypatch)
    assert sieved == whole
    assert sieved.cause == "cuda_out_of_memory"
    assert sieved.evidence[0].line == int(20_000 * failure_at) + 4


@pytest.mark.parametrize("failure_at", [0.0, 0.5, 0.97, 1.0])
def test_log_full_of_errors_is_judged_as_if_it_were_read_whole(
    failure_at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sieved, whole = both(log(tmp_path, noisy, 20_000, failure_at), monkeypatch)
    assert (sieved.kind, sieved.cause, sieved.evidence) == (whole.kind, whole.cause, whole.evidence)
    assert sieved.cause == ("cuda_out_of_memory" if failure_at == 1.0 else None)
    assert any('"ERROR sample"' in note for note in sieved.notes)


def test_sieve_reads_little_of_a_quiet_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    squeeze = scan.squeeze

    def counted(data: bytes) -> bytes:
        read.append(len(data))
        return squeeze(data)

    monkeypatch.setattr(scan, "squeeze", counted)
    path = log(tmp_path, quiet, 100_000, 0.5)
    assert explain_paths([path]).cause == "cuda_out_of_memory"
    assert sum(read) < path.stat().st_size / 8


def test_only_lines_that_nearly_all_begin_alike_fill_a_log() -> None:
    noise = [noisy(step).encode() for step in range(400)]
    tells = re.compile(b"error", re.IGNORECASE).search
    assert sieve.heads(noise, lambda head: bool(tells(head))) == [b"ERROR sample "]
    assert not sieve.heads(
        [*noise, *(quiet(step).encode() for step in range(400))], lambda head: bool(tells(head))
    )
    assert not sieve.heads(noise, lambda _: False)


def test_search_beside_a_message_that_fills_the_log_tells_the_same_places(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    others = ["12:34:56 error 7: cuda error", "no word", "", "\t17:3: Killed, then an ERROR"]
    path.write_text("".join(noisy(step) + others[step % 4] + "\n" for step in range(1000)))
    lines = path.read_bytes().split(b"\n")
    with path.open("rb") as file:
        begin = len(lines[0]) + 1
        plain = list(sieve.hits(file, begin, ["cuda", "error", r"\bkilled\b"]))
        beside = list(sieve.hits(file, begin, ["cuda", "error", r"\bkilled\b"], [b"ERROR sample "]))
    assert beside == [hit for hit in plain if b"ERROR sample " not in lines[hit.line + 1]]
    assert len(beside) == 250 * 3 + 250 * 2


def test_words_that_most_hits_were_are_given_up() -> None:
    assert sieve.frequent(Counter(error=900, cuda=90, killed=2)) == {"error", "cuda"}
    assert not sieve.frequent(Counter(error=3))


def test_line_without_end_and_carriage_returns_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = "".join(f"\r {step}%|###  |" for step in range(30_000))
    path = tmp_path / "train.log"
    path.write_text(bars + "\n" + FAILURE + bars)
    sieved, whole = both(path, monkeypatch)
    assert sieved == whole
    assert sieved.cause == "cuda_out_of_memory"


def test_grep_that_fails_leaves_the_rest_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "patterns", lambda _words, _whole: ["[" * 3])
    assert explain_paths([log(tmp_path, quiet, 20_000, 0.5)]).cause == "cuda_out_of_memory"


def test_each_example_of_a_signature_is_let_through() -> None:
    telling = re.compile("|".join(sieve.patterns(STEMS, WHOLE_WORDS)), re.IGNORECASE)
    for signature in catalogue().signatures:
        if signature.role is not SignatureRole.NOISE:
            assert all(telling.search(example) for example in signature.example), signature.id
