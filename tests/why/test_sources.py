from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.events import Event, as_json
from platform_launch.why.explaining import explain_file, explain_paths
from platform_launch.why.sources import logs_in, node_of


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("train_demo_node3_20261121-041500.log", 3),
        ("train_my_node_7_job_node12_20261121-041500.log", 12),
        ("node-4.log", 4),
        ("worker.node5.txt", 5),
        ("multi-node-2.log", None),
        ("train.log", None),
        ("anode6x.log", None),
    ],
)
def test_name_of_a_log_tells_its_node(name: str, node: int | None) -> None:
    assert node_of(name) == node


def test_folder_stands_for_the_latest_launch_of_each_node(tmp_path: Path) -> None:
    for name in (
        "train_old_node0_20261119-000000.log",
        "train_demo_node0_20261120-000000.log",
        "train_demo_node0_20261121-000001.log",
        "train_demo_node1_20261121-000000.log",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    assert [log.name for log in logs_in([tmp_path])] == [
        "train_demo_node0_20261121-000001.log",
        "train_demo_node1_20261121-000000.log",
    ]


def test_an_earlier_launch_of_more_nodes_under_the_same_name_is_left_out(tmp_path: Path) -> None:
    for name, master in (
        ("train_job_node0_20261121-000000", "127.0.0.1:4000"),
        ("train_job_node1_20261121-000000", "127.0.0.1:4000"),
        ("train_job_node0_20261121-000100", "127.0.0.1:5000"),
        ("train_job_node2_20261121-000100", "127.0.0.1:5000"),
    ):
        (tmp_path / f"{name}.log").touch()
        opened = Event("launch-opened", "INFO", fields={"master": master})
        (tmp_path / f"{name}.events.jsonl").write_bytes(as_json(opened, 0))
    (tmp_path / "train_job_node3_20261121-000000.log").touch()
    assert [log.name[14:] for log in logs_in([tmp_path])] == [
        "0_20261121-000100.log",
        "2_20261121-000100.log",
        "3_20261121-000000.log",
    ]


def test_folder_of_other_logs_stands_for_all_of_them(tmp_path: Path) -> None:
    for name in ("b.log", "a.log"):
        (tmp_path / name).touch()
    assert [log.name for log in logs_in([tmp_path])] == ["a.log", "b.log"]


def test_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.log does not exist"):
        explain_file(tmp_path / "absent.log")


def test_folder_without_logs_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"contains no log"):
        explain_paths([tmp_path])


def test_of_a_folder_what_is_called_like_a_log_and_is_none_is_left_out(tmp_path: Path) -> None:
    program = tmp_path / "dmesg"
    program.write_bytes(Path("/bin/true").read_bytes())
    (tmp_path / "noise.out").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(InputError, match=r"are binary: dmesg, noise\.out"):
        logs_in([tmp_path])
    log, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    log.write_text("ValueError: one\n")
    packed.write_bytes(gzip.compress(b"ValueError: two\n"))
    assert logs_in([tmp_path]) == [log, packed]
    assert logs_in([program]) == [program], "what is named itself is read, or refused by name"


def test_log_that_cannot_be_read_is_named() -> None:
    # Opens, and fails at its first byte with an input/output error.
    with pytest.raises(InputError, match=r"/proc/self/mem cannot be read: Input/output error"):
        explain_file(Path("/proc/self/mem"))


ERROR = "[rank2]: RuntimeError: CUDA error: invalid device ordinal\n"


def zstandard_bytes(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor().compress(data))


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.log.gz", gzip.compress),
        ("a.out.xz", lzma.compress),
        ("a.err.bz2", bz2.compress),
        ("a.o123.zst", zstandard_bytes),
        ("no_ending", gzip.compress),
    ],
)
def test_packed_log_is_read_like_a_plain_one(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    log = tmp_path / name
    log.write_bytes(pack(("step 1\n" * 200_000 + ERROR).encode()))
    verdict = explain_file(log)
    assert (verdict.cause, verdict.where.rank, verdict.evidence[0].line) == ("invalid_device", 2, 200_001)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
def test_log_of_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "a.log"
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    log.write_bytes(
        mark + ("Schritt 1 \N{LATIN SMALL LETTER U WITH DIAERESIS}\n" * 90_000 + ERROR).encode(encoding)
    )
    verdict = explain_file(log)
    assert (verdict.cause, verdict.evidence[0].line) == ("invalid_device", 90_001)


@pytest.mark.parametrize(
    ("name", "pack"), [("a.gz", gzip.compress), ("a.xz", lzma.compress), ("a.zst", zstandard_bytes)]
)
def test_packed_log_that_is_cut_short_is_an_error(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    log = tmp_path / name
    whole = pack(f"{random.Random(1).randbytes(3 << 18).hex()}\n{ERROR}".encode())
    log.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=rf"{name} cannot be decompressed"):
        explain_file(log)


def test_packed_log_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "a.gz"
    log.write_bytes(b"\x1f\x8b" + b"\x00" * 100)
    with pytest.raises(InputError, match=r"a\.gz cannot be"):
        explain_file(log)


def test_archive_and_program_are_no_logs(tmp_path: Path) -> None:
    for magic in (b"PK\x03\x04", b"\x7fELF"):
        (tmp_path / "x").write_bytes(magic + b"\x00" * 100)
        with pytest.raises(InputError, match="x is binary: expected a log"):
            explain_file(tmp_path / "x")


def test_a_binary_file_is_no_log_and_an_empty_one_is_said_to_be(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for data in (bytes(range(256)) * 8, struct.pack("<2000i", *range(2000))):
        log.write_bytes(data)
        with pytest.raises(InputError, match=r"a\.log is binary"):
            explain_file(log)
    for text in ("", "no end of line", "\x1b[31mred\x1b[0m\n", "显存不足\n" * 99, "\0" * 9000 + "late\n"):
        for encoding in ("utf-8", "gb18030", "utf-16"):
            log.write_bytes(text.encode(encoding) if text else b"")
            assert ("empty" in [one.id for one in explain_file(log).noted]) is not bool(text)


def test_zstd_without_its_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match="zstandard is not installed"):
        explain_file(tmp_path / "a.zst")


def test_folder_stands_for_logs_of_all_usual_names(tmp_path: Path) -> None:
    names = ["a.err", "a.out", "dmesg", "job.e123", "job.o123.gz", "train.log.1", "w.txt"]
    for name in [*names, "model.pt", ".hidden.log", "config.json"]:
        (tmp_path / name).touch()
    assert [log.name for log in logs_in([tmp_path])] == names


def test_torchruns_folder_stands_for_its_latest_attempt_and_tells_the_local_rank(tmp_path: Path) -> None:
    for attempt, rank in ((0, 0), (0, 3), (1, 0), (1, 3)):
        folder = tmp_path / "none_k2x9" / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        text = "RuntimeError: CUDA error: invalid device ordinal\n" if (attempt, rank) == (1, 3) else ""
        (folder / "stderr.log").write_text(text)
    verdict = explain_paths([tmp_path])
    assert (verdict.cause, str(verdict.where)) == ("invalid_device", "local rank 3")
    assert len(verdict.logs) == 4
    assert all("attempt_1" in log for log in verdict.logs)


def test_rank_is_read_from_a_logs_name(tmp_path: Path) -> None:
    (tmp_path / "out.rank12.log").write_text("RuntimeError: CUDA error: invalid device ordinal\n")
    assert explain_paths([tmp_path]).where.rank == 12


def test_kernel_log_beside_a_training_log_tells_who_killed(tmp_path: Path) -> None:
    (tmp_path / "train.out").write_text(
        "step 9\n/var/spool/slurm_script: line 8: 9012 Killed      python3 train.py\n"
    )
    (tmp_path / "dmesg").write_text(
        "[ 9912.100200] Out of memory: Killed process 9012 (python3) total-vm:900kB\n"
    )
    verdict = explain_paths([tmp_path])
    assert verdict.cause == "out_of_memory_kill"
    assert verdict.details["process"] == "python3"
