from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from platform_launch.observe.connections import UnheardConnection, parse_connection
from platform_launch.observe.dumps import parse_dump
from platform_launch.observe.hang import FindingKind, HangFinding, judge
from platform_launch.observe.overview import overview, stack_lines
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.snapshot import ChildSnapshot, NodeSnapshot, RankSnapshot
from platform_launch.observe.stacks import PythonFrame, ThreadStack
from platform_launch.observe.words import english
from platform_launch.sentences import Sentence, sentence
from tests.observe.dump_files import document, entry, gloo

TORCH = "/venv/lib/python3.11/site-packages/torch"
STEP = PythonFrame("/job/train.py", 56, "step")
IN_ALL_REDUCE = (PythonFrame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"), STEP)


def stack(*frames: PythonFrame) -> tuple[ThreadStack, ...]:
    return (ThreadStack(True, frames),)


def waiting(rank: int, sequence: int = 6, **more: Any) -> RankSnapshot:
    """Return a rank in an all_reduce."""
    dump = document([entry(sequence, backend="gloo")], status={0: (sequence, sequence - 1)})
    return RankSnapshot(
        rank,
        rank % 2,
        ProcessState(100 + rank, "python", "S", "futex_do_wait"),
        stack(*IN_ALL_REDUCE),
        trace=parse_dump(gloo(dump), rank),
        **more,
    )


def absent(rank: int, *frames: PythonFrame, state: str = "S", **more: Any) -> RankSnapshot:
    """Return a rank that has not come to it."""
    known: dict[str, Any] = {"moving": False, "busy": 0.0, **more}
    dump = document([entry(5, state="completed", backend="gloo")], status={0: (5, 5)})
    process = known.pop("process", ProcessState(100 + rank, "python", state))
    trace = None if process.stopped or process.gone else parse_dump(gloo(dump), rank)
    return RankSnapshot(rank, rank % 2, process, stack(*frames) if frames else (), trace=trace, **known)


def judged(*ranks: RankSnapshot, silent: Mapping[int, str] | None = None, world: int = 4) -> HangFinding:
    nodes = [
        NodeSnapshot(node, f"host{node}", 0.0, tuple(rank for rank in ranks if rank.rank // 2 == node))
        for node in sorted({rank.rank // 2 for rank in ranks})
    ]
    return judge(nodes, world, silent or {})


def told(sentences: Iterable[Sentence]) -> list[str]:
    return [english(one) for one in sentences]


def one(culprit: RankSnapshot) -> HangFinding:
    return judged(*(waiting(rank) for rank in range(4) if rank != culprit.rank), culprit)


VALIDATE = PythonFrame("/job/train.py", 88, "validate")


@pytest.mark.parametrize(
    ("culprit", "doing", "kind"),
    [
        (absent(3, VALIDATE), "asleep", FindingKind.HANG),
        (absent(3, VALIDATE, busy=0.9, moving=False, state="R"), "loop", FindingKind.HANG),
        (absent(3, VALIDATE, busy=0.9, moving=True), "busy", FindingKind.BUSY),
        (
            absent(3, PythonFrame(f"{TORCH}/nn/modules/linear.py", 9, "forward"), VALIDATE, busy=0.9),
            "busy",
            FindingKind.BUSY,
        ),
        (
            absent(3, PythonFrame(f"{TORCH}/cuda/__init__.py", 9, "synchronize"), VALIDATE, busy=0.9),
            "loop",
            FindingKind.HANG,
        ),
        (
            absent(3, PythonFrame("<frozen importlib._bootstrap>", 9, "_find_and_load"), VALIDATE),
            "import",
            FindingKind.BUSY,
        ),
        (absent(3, VALIDATE, gil_held=True), "gil", FindingKind.HANG),
        (absent(3, state="T"), "stopped", FindingKind.HANG),
        (absent(3, state=""), "gone", FindingKind.HANG),
        (absent(3, VALIDATE, process=ProcessState(103, "p", "D", "nfs_wait")), "kernel", FindingKind.HANG),
        (
            absent(3, PythonFrame(f"{TORCH}/serialization.py", 9, "save"), VALIDATE),
            "checkpoint",
            FindingKind.BUSY,
        ),
        (
            absent(3, PythonFrame(f"{TORCH}/_inductor/graph.py", 9, "run"), VALIDATE),
            "compile",
            FindingKind.BUSY,
        ),
        (
            absent(
                3,
                PythonFrame(f"{TORCH}/serialization.py", 9, "save"),
                process=ProcessState(103, "p", "D", "nfs_wait", waits_for="/data/checkpoint.pt"),
            ),
            "kernel",
            FindingKind.HANG,
        ),
    ],
)
def test_rank_that_others_wait_for_is_named_with_what_it_does(
    culprit: RankSnapshot, doing: str, kind: FindingKind
) -> None:
    finding = one(culprit)
    assert finding.suspect_ranks == (3,)
    assert (finding.culprits[0].doing, finding.kind) == (doing, kind)
    assert finding.headline().startswith("rank 3 (node 1, host1, pid 103) ")
    assert told(finding.waiting) == ["ranks 0-2 wait in all_reduce #6 (/job/train.py:56 in step) for rank 3"]


def test_a_rank_that_sleeps_is_said_to_without_the_kernels_word_for_it() -> None:
    finding = one(absent(3, VALIDATE, process=ProcessState(103, "p", "S", "hrtimer_nanosleep")))
    assert told(culprit.does for culprit in finding.culprits) == ["sleeps at /job/train.py:88 in validate"]


def test_ranks_with_equal_stacks_are_one_line() -> None:
    finding = one(absent(3, VALIDATE))
    assert told(finding.groups) == ["ranks 0-2: /job/train.py:56 in step, in all_reduce"]
    assert "  rank 3:   /job/train.py:88 in validate" in finding.lines()
    of_stacks = [not one for one in finding.line_documents()]
    assert of_stacks == [line.startswith("  rank 3:   ") for line in finding.lines()]


def test_blocked_file_is_named() -> None:
    blocked = ProcessState(103, "p", "D", "nfs_wait", waits_for="/data/checkpoint.pt")
    assert "(nfs_wait) on /data/checkpoint.pt" in one(absent(3, VALIDATE, process=blocked)).headline()


@pytest.mark.parametrize(
    ("child", "words"),
    [
        (ProcessState(900, "pt_data_worker", "T"), "worker process 900 is stopped"),
        (ProcessState(900, "p", "S", "wait_for_partner"), "waits in the kernel (wait_for_partner)"),
        (ProcessState(900, "p", "S", "pipe_read", waits_for="/data/shard"), "on /data/shard"),
    ],
)
def test_worker_of_a_data_loader_that_is_blocked_is_named(child: ProcessState, words: str) -> None:
    poll = PythonFrame(f"{TORCH}/utils/data/dataloader.py", 1, "_try_get_data")
    idle = ChildSnapshot(ProcessState(899, "p", "S", "futex_do_wait"))
    finding = one(absent(3, poll, VALIDATE, children=(idle, ChildSnapshot(child))))
    assert finding.culprits[0].doing == "data-worker"
    assert words in finding.headline()


def test_node_that_does_not_answer_is_named_with_its_ranks() -> None:
    finding = judged(waiting(0), waiting(1), silent={1: "gn7"})
    assert finding.suspect_ranks == (2, 3)
    assert "node 1 (gn7) did not" in finding.headline()


def test_all_in_the_same_operation_accuse_nobody() -> None:
    finding = judged(*(waiting(rank) for rank in range(4)))
    assert (finding.kind, finding.culprits) == (FindingKind.UNKNOWN, ())
    assert finding.headline() == "ranks 0-3 wait in all_reduce #6 (/job/train.py:56 in step)"


def test_rank_that_is_stuck_in_what_others_have_done_points_to_device_or_network() -> None:
    finding = judged(waiting(0, 7), waiting(1, 7), waiting(2, 6), waiting(3, 7))
    assert finding.suspect_ranks == (2,)
    assert finding.culprits[0].doing == "transport"
    assert "is still in all_reduce #6, which others have done" in finding.headline()


def test_without_any_collective_the_one_that_stands_apart_is_named() -> None:
    """JAX, or a torch without a recorder."""
    ranks = [
        RankSnapshot(rank, 0, ProcessState(100 + rank, "p", "S"), stack(STEP if rank != 2 else VALIDATE))
        for rank in range(4)
    ]
    assert judged(*ranks).suspect_ranks == (2,)


def test_stopped_rank_is_named_where_no_collective_is_known() -> None:
    ranks = [
        RankSnapshot(rank, 0, ProcessState(100 + rank, "p", "T" if rank == 1 else "S"), stack(STEP))
        for rank in range(2)
    ]
    finding = judged(*ranks, world=2)
    assert finding.suspect_ranks == (1,)
    assert finding.culprits[0].does.values["what"] == sentence("halted", pid=101)


def test_job_whose_processes_all_ended_has_no_culprit() -> None:
    assert judged(absent(0, state=""), absent(1, state=""), world=2).culprits == ()


def test_who_works_is_not_named_beside_one_that_is_stuck() -> None:
    busy = absent(2, VALIDATE, busy=0.9, moving=True)
    finding = judged(waiting(0), waiting(1), busy, absent(3, VALIDATE))
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.HANG, (3,))


def test_overview_shows_a_line_a_place() -> None:
    ranks = (waiting(0), waiting(1), absent(2, VALIDATE))
    lines = [english(one) for one in overview([NodeSnapshot(0, "gn7", 0.0, ranks, {0: "GPU 4"})], {1: "gn8"})]
    assert lines == [
        "ranks 0 and 1: /job/train.py:56 in step, in all_reduce #6",
        "rank 2 (node 0, gn7, pid 102, GPU 4): /job/train.py:88 in validate",
        "node 1 (gn8) does not answer",
    ]
    assert any(
        "/job/train.py:88 in validate" in line for line in stack_lines([NodeSnapshot(0, "h", 0, ranks)])
    )


def test_ends_of_a_connection_whose_packets_vanish_are_named_with_their_addresses() -> None:
    silent = UnheardConnection("10.0.0.2:40000", "10.0.0.1:29500", 248, 5)
    finding = judged(waiting(0), waiting(1), replace(waiting(2), unheard=(silent,)), waiting(3))
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.HANG, (2,))
    (culprit,) = finding.culprits
    assert culprit.doing == "network"
    assert "10.0.0.1:29500 does not acknowledge what 10.0.0.2:40000 sent it 6 times" in english(culprit.does)


KERNELS_LINE = (
    "  10: 0201D60A:DF82 0101D60A:917F 01 000000F8:00000000 01:000015AB 0000000A     0        0 81234 2 0"
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (KERNELS_LINE, ("81234", UnheardConnection("10.214.1.2:57218", "10.214.1.1:37247", 248, 10))),
        (KERNELS_LINE.replace("0000000A", "00000002"), None),
        (KERNELS_LINE.replace(" 01:0000", " 04:0000"), None),  # its window is full: it lives
        ("", None),
        ("sl local_address rem_address", None),
    ],
)
def test_connection_counts_as_unheard_after_some_attempts(line: str, found: object) -> None:
    assert parse_connection(line) == found


def test_ranks_that_have_all_ended_are_no_hang_however_long_their_launcher_takes() -> None:
    finding = judged(*(absent(rank, state="") for rank in range(4)))
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.BUSY, ())
    assert finding.headline() == "all ranks have ended, and what started them has not yet"
