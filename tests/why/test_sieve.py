"""What is skipped of big logs changes no answer. Big is what is a few MiB here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.explaining import explain_paths
from platform_launch.why.lines import scan, sieve
from platform_launch.why.lines.sieve import LONGEST_BYTES, BrokenLines
from platform_launch.why.lines.vocabulary import STEMS, squeeze
from platform_launch.why.messages.signatures import SignatureRole, catalogue
from tests.why.corpus import examples

FAILURE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 88, in <module>
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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were read here, not by grep, at each time."""
    sizes: list[int] = []

    def counted(data: bytes) -> bytes:
        sizes.append(len(data))
        return squeeze(data)

    monkeypatch.setattr(scan, "squeeze", counted)
    return sizes


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
    assert sieved.cause == "cuda_out_of_memory"
    assert any('"ERROR sample"' in note for note in sieved.notes)


def test_sieve_reads_little_of_a_quiet_log(tmp_path: Path, read: list[int]) -> None:
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


def test_line_that_becomes_endless_is_broken_for_grep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    monkeypatch.setattr(sieve, "_MOST_MEMORY_BYTES", 32 << 20)
    path = tmp_path / "train.log"
    bar = "\r 17%|###  | 17/100 [00:01<00:09]" * (24 << 15)
    path.write_text("".join(map(quiet, range(20_000))) + bar + "\n" + FAILURE + bar)
    verdict = explain_paths([path])
    assert (verdict.cause, verdict.evidence[0].line) == ("cuda_out_of_memory", 20_005)
    assert sum(read) < path.stat().st_size / 8


def test_four_letters_amid_data_are_no_word(tmp_path: Path, read: list[int]) -> None:
    path = tmp_path / "train.log"
    data = ("iVBORw0KGgoAAAANSUhEUgAAAAE" * 40 + "killlfail" + "iVBORw0KGgoAAAANSUhEUgAAAAE" * 40) * 70
    path.write_text("".join(f'{{"step": {step}, "image": "{data}"}}\n' for step in range(40)) + FAILURE)
    assert explain_paths([path]).cause == "cuda_out_of_memory"
    assert sum(read) < path.stat().st_size / 8


def test_broken_lines_keep_each_byte_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    data = b"one\ntwo\r\n" + b"\r5% " * 50_000 + b"\nthree\n" + b"x" * 300_000 + b" y" * 100_000
    path.write_bytes(data)
    with path.open("rb") as file:
        lines = BrokenLines(file, 4)
        broken = lines.source.read()
        assert [lines.lines_before(place) for place in (0, 4, 5, 300_000, 600_000)] == [0, 0, 1, 3, 3]
        lines.close()
    assert len(broken) == len(data) - 4
    assert all(new == old or new in b" \n" for new, old in zip(broken, data[4:], strict=True))
    assert b"\nthree\n" in broken
    assert b"x" * 100_000 not in broken
    assert max(map(len, broken.split(b"\n"))) <= 2 * LONGEST_BYTES


def test_grep_that_fails_leaves_the_rest_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "patterns", lambda _worn: ["[" * 3])
    assert explain_paths([log(tmp_path, quiet, 20_000, 0.5)]).cause == "cuda_out_of_memory"


def test_each_example_of_a_signature_is_let_through() -> None:
    telling = re.compile("|".join(sieve.patterns(set())), re.IGNORECASE | re.MULTILINE)
    known = examples("signatures")
    for signature in catalogue().signatures:
        if signature.role is not SignatureRole.NOISE:
            assert all(telling.search(example) for example in known.get(signature.id, ())), signature.id


@pytest.mark.parametrize(
    "line",
    [
        '  File "/job/train.py", line 88, in step',
        "/usr/bin/python3: No module named train",
        "tar: model.pt: No space left on device",
        "[E] NPU out of memory.",
        "EI0006: 2026-01-02-03:04:05.444.436 Getting socket times out.",
        "gpu-3:41:88 [0] NCCL WARN Could not find NET with id 0",
        "Xid (PCI:0000:02:00): 79, pid=42, GPU has fallen off the bus.",
        "The owner has died.",
        "step 3 | loss: nan",
        '{"step": 3, "loss": NaN, "lr": 0.1}',
        "worker 3 ended with status 9",
        "mount.nfs: server does not answer",
        "/var/spool/slurmd/job7/slurm_script: line 3:  4242 Terminated              python train.py",
        "Out_of_me+ 0:125",
    ],
)
def test_telling_line_without_a_stem_is_let_through_too(line: str) -> None:
    assert not any(stem in line.lower() for stem in STEMS)
    telling = re.compile("|".join(sieve.patterns(set())), re.IGNORECASE | re.MULTILINE)
    assert telling.search(line)
