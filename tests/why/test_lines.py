from __future__ import annotations

import pytest

from platform_launch.why.lines.line import Line, Location, parse


def where(**known: object) -> Location:
    return Location(**known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "text", "place"),
    [
        ("[node 3] hello", "hello", where(node=3)),
        ("[node 3] [rank26]: hello", "hello", where(node=3, rank=26)),
        ("[pod/train-0-x7k2p/main] [rank1]: hello", "hello", where(pod="train-0-x7k2p", rank=1)),
        ("[pod/train-0/main] 2026-11-21T03:04:05.123456789Z hello", "hello", where(pod="train-0")),
        ("[default7]:[rank15]:   hello", "  hello", where(local_rank=7, rank=15)),
        (" 4: hello", "hello", where(task=4)),
        ("node7: Last error:", "Last error:", where(host="node7")),
        ("epoch7: hello", "epoch7: hello", where()),
        ("gpu-7:534:1763 [3] NCCL INFO x", "gpu-7:534:1763 [3] NCCL INFO x", where(host="gpu-7")),
        ("a.cpp:1] [PG ID 0 Rank 3] x", "a.cpp:1] [PG ID 0 Rank 3] x", where(rank=3)),
        ("[INFO] hello", "[INFO] hello", where()),
        ("[gn06:12345] *** x", "[gn06:12345] *** x", where(host="gn06")),
        ("[alpha:4242 :0:4242] x", "[alpha:4242 :0:4242] x", where(host="alpha")),
        ("[9f10867610e4:42 :0:43] x", "[9f10867610e4:42 :0:43] x", where(host="9f10867610e4")),
        ("[master:42:0:42] x", "[master:42:0:42] x", where(host="master")),
        ("[ERROR:12345] x", "[ERROR:12345] x", where()),
        ("[pid:12345] x", "[pid:12345] x", where()),
        ("[step:120000] x", "[step:120000] x", where()),
        ("[Epoch:1:200] x", "[Epoch:1:200] x", where()),
        ("[GPU0:12345] x", "[GPU0:12345] x", where()),
        ("[gpu02:12345] x", "[gpu02:12345] x", where(host="gpu02")),
        ("[llama3-lora-rank-64] x", "[llama3-lora-rank-64] x", where()),
        ("[low_rank=8 matrix rank 4] x", "[low_rank=8 matrix rank 4] x", where()),
        ("Rank 0 - 7: x", "Rank 0 - 7: x", where()),
        ("Rank 0, 1: x", "Rank 0, 1: x", where()),
        ("[Rank 0 - 7] x", "[Rank 0 - 7] x", where()),
        ("Rank 3 - 2 steps left", "2 steps left", where(rank=3)),
        ("[Rank 3 - 2026-11-21] x", "[Rank 3 - 2026-11-21] x", where(rank=3)),
        ("the loss is NaN on rank 3, stopping", "the loss is NaN on rank 3, stopping", where(rank=3)),
        ("[rank0]: shard lost on rank 3", "shard lost on rank 3", where(rank=0)),
        ("waiting on rank 3 for 60 s", "waiting on rank 3 for 60 s", where()),
        ("MyError: shapes differ on rank 3", "MyError: shapes differ on rank 3", where()),
        ("a tensor of rank 3", "a tensor of rank 3", where()),
        ("runs/multi-node-2.log:x", "x", where()),
        ("runs/train-node-2.log:x", "x", where(node=2)),
        ("runs/lora-rank-64.log:x", "x", where()),
    ],
)  # fmt: skip
def test_prefixes_name_the_process(data: str, text: str, place: Location) -> None:
    line = parse(1, data.encode())
    assert (line.text, line.where) == (text, place)


DAY_S = 325 * 86400.0  # 21 November in a leap year
CLOCK_S = 3 * 3600 + 4 * 60 + 5


@pytest.mark.parametrize(
    "data",
    [
        "[rank0]:[E1121 03:04:05.000000000 ProcessGroupNCCL.cpp:607] x",
        "W1121 03:04:05.000000 20641 torch/distributed/elastic/multiprocessing/api.py:1028] x",
        "[2026-11-21 03:04:05,000] [INFO] [engine.py:1:f] x",
        "2026-11-21 03:04:05.000000: E external/xla/a.cc:1] x",
        "2026-11-21T03:04:05Z x",
        "11/21/2026 03:04:05 - INFO - x",
        "[2026-11-21 03:04:05] gpu-7:1:2 [0] NCCL WARN x",
        "[node 1] [2026-11-21 03:04:05] x",
    ],
)
def test_times_of_all_formats_are_read(data: str) -> None:
    assert parse(1, data.encode()).time_s == DAY_S + CLOCK_S


def test_line_without_time_has_none() -> None:
    assert parse(1, b"03:04:05 is not a date").time_s is None


@pytest.mark.parametrize(
    ("data", "mild"),
    [
        ("[W1121 03:04:05.0 socket.cpp:1] x", True),
        ("[E1121 03:04:05.0 socket.cpp:1] x", False),
        ("[node 1] [WARN] x", True),
        ("WARNING:root:x", True),
        ("gpu-7:1:2 [0] NCCL WARN x", False),
        ("W1121 03:04:05.123456 42 init.cc:2] *** SIGBUS (@0x7) received by PID 42; stack trace: ***", False),
        ("x", False),
    ],
)
def test_warnings_are_mild_except_those_of_nccl_and_of_crashes(data: str, mild: bool) -> None:
    line: Line = parse(1, data.encode())
    assert line.mild is mild
