from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from platform_launch.observe.connections import UnheardConnection, parse_connection
from platform_launch.observe.dumps import parse_dump
from platform_launch.observe.hang import FindingKind, HangFinding, _operation, judge
from platform_launch.observe.overview import overview, stack_lines
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.snapshot import ChildSnapshot, NodeSnapshot, RankSnapshot
from platform_launch.observe.stacks import PythonFrame, ThreadStack
from platform_launch.observe.words import english
from platform_launch.observe.work import Work
from platform_launch.sentences import Sentence, sentence
from tests.observe.dump_files import document, entry, gloo

TORCH = "/venv/lib/python3.11/site-packages/torch"
STEP = PythonFrame("/job/train.py", 56, "step")
IN_ALL_REDUCE = (PythonFrame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"), STEP)


def stack(*frames: PythonFrame) -> tuple[ThreadStack, ...]:
    return (ThreadStack(True, frames),)


def waiting(rank: int, sequence: int = 6, backend: str = "gloo", **more: Any) -> RankSnapshot:
    """Return a rank in an all_reduce."""
    dump = document([entry(sequence, backend=backend)], status={0: (sequence, sequence - 1)})
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
    known: dict[str, Any] = {"moving": False, "work": Work(150.0), **more}
    dump = document([entry(5, state="completed", backend="gloo")], status={0: (5, 5)})
    process = known.pop("process", ProcessState(100 + rank, "python", state))
    trace = None if process.stopped or process.ended else parse_dump(gloo(dump), rank)
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
LINEAR = PythonFrame(f"{TORCH}/nn/modules/linear.py", 9, "forward")
SYNCHRONIZE = PythonFrame(f"{TORCH}/cuda/__init__.py", 9, "synchronize")
IMPORT = PythonFrame("<frozen importlib._bootstrap>", 9, "_find_and_load")
BATON = PythonFrame(f"{TORCH}/utils/file_baton.py", 9, "wait")
BUILD = PythonFrame(f"{TORCH}/utils/cpp_extension.py", 9, "_run_ninja_build")
LOADER = PythonFrame(f"{TORCH}/utils/data/dataloader.py", 1, "_try_get_data")
SAVE = PythonFrame(f"{TORCH}/serialization.py", 9, "save")
POST = PythonFrame("/venv/lib/python3.11/site-packages/requests/sessions.py", 9, "send")
COMPUTES = Work(150.0, main=0.9)
IN_A_CHILD = Work(150.0, children=0.98, child=900, child_name="cc1plus")


@pytest.mark.parametrize(
    ("culprit", "doing", "kind"),
    [
        (absent(3, VALIDATE), "asleep", FindingKind.HANG),
        (absent(3, VALIDATE, work=COMPUTES, moving=False, state="R"), "loop", FindingKind.BUSY),
        (absent(3, VALIDATE, work=COMPUTES, moving=True), "busy", FindingKind.BUSY),
        (absent(3, LINEAR, VALIDATE, work=COMPUTES), "busy", FindingKind.BUSY),
        (absent(3, SYNCHRONIZE, VALIDATE, work=COMPUTES), "device", FindingKind.HANG),
        (absent(3, IMPORT, VALIDATE), "import", FindingKind.HANG),
        (absent(3, IMPORT, VALIDATE, work=COMPUTES), "import", FindingKind.BUSY),
        (absent(3, BATON, VALIDATE), "lock", FindingKind.HANG),
        (absent(3, BUILD, VALIDATE), "compile", FindingKind.HANG),
        (absent(3, BUILD, VALIDATE, work=IN_A_CHILD), "compile", FindingKind.BUSY),
        (absent(3, LOADER, VALIDATE, work=IN_A_CHILD), "data", FindingKind.BUSY),
        (absent(3, POST, VALIDATE), "request", FindingKind.HANG),
        (absent(3, POST, VALIDATE, work=Work(150.0, bytes_per_s=1e6)), "request", FindingKind.BUSY),
        (absent(3, VALIDATE, work=Work(150.0, threads=0.5)), "busy", FindingKind.BUSY),
        (absent(3, VALIDATE, work=Work(150.0, main=0.002, bytes_per_s=80.0)), "asleep", FindingKind.HANG),
        (absent(3, VALIDATE, gil_held=True), "gil", FindingKind.HANG),
        (absent(3, state="T"), "stopped", FindingKind.HANG),
        (absent(3, state=""), "gone", FindingKind.HANG),
        (absent(3, VALIDATE, process=ProcessState(103, "p", "D", "nfs_wait")), "kernel", FindingKind.HANG),
        (absent(3, SAVE, VALIDATE), "checkpoint", FindingKind.HANG),
        (
            absent(3, SAVE, VALIDATE, work=Work(150.0, bytes_per_s=2e6), state="D"),
            "checkpoint",
            FindingKind.BUSY,
        ),
        (
            absent(
                3,
                SAVE,
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


def test_what_a_rank_waits_for_is_reported_without_names_of_kernel_functions() -> None:
    sleeps = ProcessState(103, "p", "S", "hrtimer_nanosleep", call="sleep")
    finding = one(absent(3, VALIDATE, process=sleeps))
    assert told(culprit.does for culprit in finding.culprits) == ["sleeps at /job/train.py:88 in validate"]


def test_ranks_with_equal_stacks_are_one_line() -> None:
    finding = one(absent(3, VALIDATE))
    assert told(finding.groups) == ["ranks 0-2: /job/train.py:56 in step, in all_reduce"]
    assert "  rank 3:   /job/train.py:88 in validate" in finding.lines()
    of_stacks = [not one for one in finding.line_documents()]
    assert of_stacks == [line.startswith("  rank 3:   ") for line in finding.lines()]


def test_blocked_file_is_named() -> None:
    blocked = ProcessState(103, "p", "D", "nfs_wait", waits_for="/data/checkpoint.pt")
    assert (
        "blocked in the kernel on /data/checkpoint.pt" in one(absent(3, VALIDATE, process=blocked)).headline()
    )


@pytest.mark.parametrize(
    ("child", "words"),
    [
        (ProcessState(900, "pt_data_worker", "T"), "worker process 900 (pt_data_worker) is suspended"),
        (ProcessState(900, "p", "S", "wait_for_partner", call="open"), "waits for a file to open"),
        (
            ProcessState(900, "p", "S", "pipe_read", waits_for="/data/shard", call="read"),
            "waits to read /data/shard",
        ),
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


@pytest.mark.parametrize(
    ("backend", "doing", "words"),
    [
        ("nccl", "transport", "its device or its network is stuck"),
        ("gloo", "order", "check that all ranks call operations in the same order"),
    ],
)
def test_rank_that_is_stuck_in_what_others_have_done_points_to_a_device_only_if_there_is_one(
    backend: str, doing: str, words: str
) -> None:
    sequences = (7, 7, 6, 7)
    finding = judged(*(waiting(rank, at, backend=backend) for rank, at in enumerate(sequences)))
    assert (finding.suspect_ranks, finding.culprits[0].doing) == ((2,), doing)
    assert "is in all_reduce #6 at /job/train.py:56 in step, which others have done: " in finding.headline()
    assert words in finding.headline()


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


def test_job_is_no_hang_while_one_of_those_that_are_waited_for_works() -> None:
    """The other may wait for it: for the extension that it builds, for the file that it downloads."""
    finding = judged(waiting(0), waiting(1), absent(2, VALIDATE, work=COMPUTES), absent(3, VALIDATE))
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.BUSY, (2,))


def test_helper_that_waiting_ranks_have_as_well_is_no_evidence_of_work() -> None:
    """A logger or a monitor in each rank computes a little, whatever the job does."""
    helper = Work(150.0, threads=0.03, children=0.04, bytes_per_s=3e4, child=9, child_name="wandb-core")
    ranks = [waiting(rank, work=helper) for rank in range(3)]
    assert judged(*ranks, absent(3, VALIDATE, work=helper)).kind is FindingKind.HANG
    works = replace(helper, children=0.5)
    assert judged(*ranks, absent(3, VALIDATE, work=works)).kind is FindingKind.BUSY


def test_child_that_works_is_named() -> None:
    finding = one(absent(3, BUILD, VALIDATE, work=IN_A_CHILD))
    assert finding.headline().endswith(
        "compiles an extension at /job/train.py:88 in validate; its subprocess 900 (cc1plus) computes "
        "(98% of a core)"
    )


def test_operation_that_shows_no_sign_of_work_is_named_with_its_peer() -> None:
    process = ProcessState(103, "p", "S", "", waits_for="10.0.0.5:443", call="read")
    finding = one(absent(3, POST, VALIDATE, process=process, work=Work(40.0)))
    assert finding.headline().endswith(
        "makes a network request (peer 10.0.0.5:443) at /job/train.py:88 in validate, but has used no "
        "CPU and moved no bytes for 40 s"
    )


def test_holder_of_a_file_lock_is_named_instead_of_who_waits_for_it() -> None:
    locked = ProcessState(102, "p", "S", waits_for="/data/cache.lock", call="lock", lock_owner=103)
    finding = judged(waiting(0), waiting(1), absent(2, VALIDATE, process=locked), absent(3, LINEAR, VALIDATE))
    assert finding.suspect_ranks == (3,)
    stranger = replace(locked, lock_owner=4711)
    finding = judged(waiting(0), waiting(1), absent(2, VALIDATE, process=stranger), waiting(3))
    assert "waits for the lock on /data/cache.lock (held by process 4711)" in finding.headline()


def test_rank_that_ended_is_no_suspect_if_nobody_waits_for_it() -> None:
    """The job is done, and rank 0 still exports the model; or it hangs there."""
    export = PythonFrame("/job/train.py", 99, "export")
    ended = [absent(rank, state="") for rank in (1, 2, 3)]
    finding = judged(absent(0, export, work=COMPUTES), *ended)
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.BUSY, (0,))
    finding = judged(absent(0, export), *ended)
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.HANG, (0,))


def in_operation(rank: int, name: str, sequence: int = 6, **more: Any) -> RankSnapshot:
    """Return a rank that waits in an operation, as DDP does: no frame of torch.distributed shows it."""
    pending = {**entry(sequence, name, backend="gloo"), **more}
    earlier = entry(sequence - 1, state="completed", backend="gloo")
    dump = document([earlier, pending], status={0: (sequence, sequence - 1)})
    engine = PythonFrame(f"{TORCH}/autograd/graph.py", 9, "_engine_run_backward")
    state = ProcessState(100 + rank, "python", "S", "futex_do_wait", call="futex")
    return RankSnapshot(
        rank, rank % 2, state, stack(engine, STEP), trace=parse_dump(gloo(dump), rank), work=Work(150.0)
    )


def test_ranks_in_different_operations_are_a_mismatch_whatever_their_shapes() -> None:
    ranks = [in_operation(0, "all_gather"), *(in_operation(rank, "all_reduce") for rank in (1, 2, 3))]
    finding = judged(*ranks)
    assert (finding.suspect_ranks, finding.culprits[0].doing) == ((0,), "mismatch")
    assert finding.headline().endswith(
        "is in all_gather #6 at /job/train.py:56 in step, but others are in all_reduce #6: the ranks do not "
        "call the same operations"
    )
    assert told(finding.waiting) == ["ranks 1-3 wait in all_reduce #6 (/job/train.py:56 in step) for rank 0"]


def test_rank_that_spins_while_its_device_is_stuck_does_not_work() -> None:
    """``loss.item()`` is a line of the user's, and waits for the device with a whole core."""
    item = PythonFrame("/job/train.py", 60, "step")
    ranks = [
        replace(
            waiting(rank, 6 if rank == 2 else 7, backend="nccl"),
            threads=stack(item),
            state=ProcessState(102, "python", "R"),
            work=COMPUTES,
        )
        for rank in range(4)
    ]
    finding = judged(*ranks)
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.HANG, (2,))
    assert finding.culprits[0].doing == "transport"


def test_gpu_that_computes_is_work_and_one_that_idles_or_waits_in_nccl_is_none() -> None:
    def kind(**more: Any) -> FindingKind:
        return one(absent(2, SYNCHRONIZE, STEP, work=COMPUTES, **more)).kind

    assert kind(gpu_busy=98.0) is FindingKind.BUSY
    assert kind(gpu_busy=0.0) is FindingKind.HANG, "a thread that waits for its device may spin"
    assert kind() is FindingKind.HANG
    assert kind(moving=True) is FindingKind.BUSY, "it came back from the device again and again"
    said = one(absent(2, SYNCHRONIZE, STEP, gpu_busy=98.0)).headline()
    assert said.endswith(
        "waits for its GPU, which computes (busy for 98% of the time) at /job/train.py:56 in step"
    )
    spins = replace(waiting(2, 6, backend="nccl"), threads=stack(SYNCHRONIZE, STEP), gpu_busy=100.0)
    others = [waiting(rank, 7, backend="nccl") for rank in (0, 1, 3)]
    assert judged(*others, replace(spins, work=COMPUTES)).kind is FindingKind.HANG


def test_rank_that_a_person_debugs_is_no_hang_and_one_with_a_forgotten_breakpoint_is() -> None:
    reads = PythonFrame("/usr/lib/python3.11/pdb.py", 397, "_cmdloop")
    look = PythonFrame("/venv/lib/python3.11/site-packages/x/hook/_platform_launch_look.py", 265, "readline")
    debugged = one(absent(2, look, reads, STEP))
    assert (debugged.kind, debugged.suspect_ranks) == (FindingKind.BUSY, (2,))
    assert debugged.headline().endswith(
        "is in a debugger (platform-launch debug) at /job/train.py:56 in step"
    )
    assert one(absent(2, reads, STEP)).kind is FindingKind.HANG


def test_circular_wait_names_both_operations_and_both_groups() -> None:
    """A rank that reduces in its tensor group first, and one that reduces over all first."""

    def found(rank: int, group: str) -> RankSnapshot:
        earlier = [
            entry(5, state="completed", backend="gloo"),
            {**entry(5, group="1", pg_id=1, state="completed", backend="gloo"), "process_group": ("1", "tp")},
        ]
        pending = entry(6, group=group, pg_id=int(group), backend="gloo")
        if group == "1":
            pending["process_group"] = ("1", "tp")
        dump = document([*earlier, pending], status={0: (6, 5), 1: (5, 5)})
        return replace(in_operation(rank, "all_reduce"), trace=parse_dump(gloo(dump), rank))

    finding = judged(found(0, "1"), found(1, "0"), world=2)
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.HANG, (0, 1))
    assert [culprit.doing for culprit in finding.culprits] == ["circular", "circular"]
    assert "is in all_reduce #6 of group 1 (tp) at /job/train.py:56 in step" in finding.headline()
    assert "is in all_reduce #6 of group 0 (default_pg) at /job/train.py:56 in step" in finding.headline()
    assert "the ranks use these groups in different orders" in finding.headline()


def test_operation_of_another_thread_is_not_what_the_main_thread_is_in() -> None:
    issued_elsewhere = in_operation(3, "barrier", thread_id=77)
    locked = replace(
        issued_elsewhere,
        threads=(ThreadStack(True, (VALIDATE,), ident=11),),
        state=ProcessState(103, "p", "S", call="futex"),
    )
    assert _operation(locked) is None
    assert _operation(replace(locked, threads=(ThreadStack(True, (VALIDATE,), ident=77),))) is not None


def test_broadcast_that_some_have_left_points_to_its_root() -> None:
    ranks = [in_operation(rank, "broadcast", 6 + rank // 2) for rank in range(4)]
    finding = judged(*ranks)
    assert finding.suspect_ranks == (0, 1, 2, 3)
    assert finding.culprits[0].doing == "root"
    assert "pass the same src" in finding.headline()


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
