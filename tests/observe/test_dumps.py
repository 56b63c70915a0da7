from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.observe.dumps import (
    find_dumps,
    looks_like_dump,
    parse_dump,
    read_dump,
)
from tests.observe.dump_files import document, entry, gloo, nccl

FRAMES = [("/lib/torch/distributed/distributed_c10d.py", 3252, "all_reduce"), ("/job/train.py", 7, "step")]


IN_ITSELF: list[object] = []
IN_ITSELF.append(IN_ITSELF)


def test_pickle_and_json_read_alike() -> None:
    dump = document(
        [entry(4, state="completed"), entry(5, frames=FRAMES)], status={0: (5, 4)}, groups={"0": [0, 1]}
    )
    for data in (nccl(dump), gloo(dump)):
        trace = parse_dump(data, rank=1)
        assert trace.rank == 1
        assert (trace.groups["0"].ranks, trace.groups["0"].enqueued, trace.groups["0"].completed) == (
            (0, 1),
            5,
            4,
        )
        assert [str(collective) for collective in trace.pending] == ["all_reduce #5"]


def test_operation_that_the_status_calls_complete_is_not_pending() -> None:
    """The recorder's watchdog may be late to retire an entry."""
    trace = parse_dump(nccl(document([entry(4), entry(5)], status={0: (5, 4)})), rank=0)
    assert [collective.sequence for collective in trace.pending] == [5]


def test_number_before_the_first_operation_is_zero() -> None:
    trace = parse_dump(nccl(document([entry(1)], status={0: (1, -1)})), rank=0)
    assert trace.groups["0"].completed == 0


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def test_pickle_that_names_a_function_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"version": "2.10", "entries": [Harmful()]})
    with pytest.raises(InputError, match=r"names posix\.system: expected plain dictionaries"):
        parse_dump(data, rank=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02}q\x00.",
        nccl(document([entry(1)], status={0: (1, 0)}))[:-40],
        gloo(document([entry(1)], status={0: (1, 0)}))[:-40],
        b"[" * 100_000,
        b'{"a":' * 100_000,
        json.dumps({"entries": [], "pg_config": {"0": {"ranks": "[" * 100_000}}}).encode(),
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": "none"}),
        b"Traceback (most recent call last):\n",
    ],
)
def test_what_is_no_whole_dump_is_an_error_that_says_so(data: bytes) -> None:
    if data == b"\x80\x02}q\x00.":  # an empty dump is what a rank without any collective writes
        assert parse_dump(data, rank=0).pending == ()
        return
    with pytest.raises(InputError, match=r"expected a dump|complete pickle|complete JSON"):
        parse_dump(data, rank=0)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"collective_seq_id": "many"},
        {"collective_seq_id": None},
        {"process_group": 7},
        {"process_group": []},
        {"profiling_name": None},
        {"frames": "none"},
        {"frames": [3]},
        {"input_sizes": None},
        {"input_sizes": {(1, 2): 3}},
        {"input_sizes": IN_ITSELF},
        {"state": 4},
    ],
)
def test_entries_of_odd_shape_do_not_keep_the_others_from_being_read(spoiled: dict[str, object]) -> None:
    odd = {**entry(1), **spoiled}
    trace = parse_dump(nccl(document([odd, entry(2)], status={0: (2, 0)})), rank=0)
    assert 2 in [collective.sequence for collective in trace.pending]


def test_reference_cycle_of_memo_entries_is_read_or_refused() -> None:
    """A pickle may hold itself."""
    cycle: dict[str, object] = {"entries": []}
    cycle["self"] = cycle
    assert parse_dump(pickle.dumps(cycle), rank=0).pending == ()


def test_dumps_are_told_from_other_files_by_their_first_bytes(tmp_path: Path) -> None:
    dump = document([entry(1)], status={0: (1, 0)})
    contents = {
        "nccl_trace_rank_0": nccl(dump),
        "gloo_1.json": gloo(dump),
        "record_2.json": b'{"outcome": 3}',
        "train_node0.log": b"[INFO] started\n",
        "model_3.pt": pickle.dumps({"weight": 1}),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    assert {name for name in contents if looks_like_dump(tmp_path / name)} == {
        "nccl_trace_rank_0",
        "gloo_1.json",
    }
    assert not looks_like_dump(tmp_path / "absent")


def test_of_a_folder_the_dumps_of_the_last_launch_are_found(tmp_path: Path) -> None:
    data = nccl(document([entry(1)], status={0: (1, 0)}))
    for launch, time in (("a", 100), ("b", 300), ("c", 200)):
        for rank in range(2):
            file = tmp_path / f"flight_{launch}_rank{rank}"
            file.write_bytes(data)
            os.utime(file, (time, time))
    found = find_dumps([tmp_path])
    assert {rank: path.name for rank, path in found.items()} == {0: "flight_b_rank0", 1: "flight_b_rank1"}


def test_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "dump_0"
    with huge.open("wb") as file:
        file.truncate(300 * 1024 * 1024)
    with pytest.raises(InputError, match="larger than 256 MiB"):
        read_dump(huge, 0)


def test_unpickler_knows_no_class_by_any_opcode() -> None:
    """STACK_GLOBAL, INST and EXT codes reach classes as well as GLOBAL does."""
    stack_global = b"\x80\x04\x8c\x02os\x8c\x06system\x93."
    inst = b"(ios\nsystem\n."
    extension = b"\x80\x02\x82\x01."
    for data in (stack_global, inst, extension):
        with pytest.raises(InputError):
            parse_dump(data, rank=0)
