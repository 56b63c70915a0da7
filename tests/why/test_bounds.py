"""Small files that unfold to something endless are read in part, and that is said."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from platform_launch.observe.dumps import parse_dump, written
from platform_launch.why.explaining import explain_file
from platform_launch.why.lines import opening

FAILURE = "[rank0]: ValueError: the plan is odd\n"


def test_a_value_that_holds_itself_again_and_again_is_written_in_part() -> None:
    shared: list[object] = [1]
    for _ in range(64):
        shared = [shared, shared]
    assert len(written(shared, 50)) == 50
    endless: list[object] = []
    endless.append(endless)
    assert written(endless, 9) == "[" * 9
    assert written([[2, 3], [4]]) == "[[2, 3], [4]]"


def test_a_dump_whose_values_share_others_is_read() -> None:
    shared: object = [1]
    for _ in range(64):
        shared = [shared, shared]
    entry = {"process_group": ("0", shared), "input_sizes": shared, "profiling_name": shared, "pg_id": shared}
    data = pickle.dumps({"version": "2.4", "entries": [entry], "pg_config": {"0": {"desc": shared}}})
    assert len(data) < 1000
    trace = parse_dump(data, 3)
    assert len(trace.pending[0].shapes) <= 200


def test_a_key_that_takes_forever_to_hash_is_not_hashed() -> None:
    doubled = b"\x80\x04}K\x01\x85\x94" + b"2\x86" * 64 + b"K\x01s."
    assert parse_dump(doubled + b"entries", 0).pending == ()


def test_a_packed_log_without_end_is_read_in_part_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_UNPACKED_MIB", 2)
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(FAILURE.encode() + b"\0" * (64 << 20)))
    verdict = explain_file(path)
    assert "unpacked-in-part" in [one.id for one in verdict.noted]
    assert verdict.title == "ValueError: the plan is odd"


def test_a_packed_log_of_an_ordinary_ratio_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_UNPACKED_MIB", 1)
    lines = "".join(f"step {n} loss {n * 7919 % 10007}\n" for n in range(200_000))
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress((lines + FAILURE).encode()))
    verdict = explain_file(path)
    assert "unpacked-in-part" not in [one.id for one in verdict.noted]
    assert verdict.evidence[0].line == 200_001
