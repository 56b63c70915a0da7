"""What an answer tells beside the cause: whether to try again, by which name to know it, who is behind."""

from __future__ import annotations

import pytest

from platform_launch.why.answer.verdict import essence
from platform_launch.why.lines.literals import PatternSet, index_of, needed
from tests.why.conftest import Explain, progress, uncaught

LATE = (
    "[rank{0}]:[E1121 03:14:05.1 x.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 ms\n"
)


@pytest.mark.parametrize(
    ("log", "retry"),
    [
        ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n", "another_node"),
        (uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), "no"),
        ("huggingface_hub.errors.HfHubHTTPError: 502 Server Error: Bad Gateway\n", "same_node"),
        (uncaught("KeyError: 'lr'"), "no"),
        (LATE.format(0, 7, "ALLREDUCE"), None),
        ("ERROR frobnicator lost its widget\n", None),
    ],
)
def test_answer_says_whether_to_try_again_and_why(explain_text: Explain, log: str, retry: str | None) -> None:
    verdict = explain_text(log)
    assert verdict.retry == retry
    assert verdict.retry_reason
    assert any(line.startswith("retry:") for line in verdict.lines())


def test_equal_failures_have_the_same_fingerprint_whatever_the_numbers_paths_and_ranks(
    explain_text: Explain,
) -> None:
    one = explain_text(uncaught("ValueError: clip 12 of /data/a/b.mp4 at 0x7f01 is odd", "[rank3]: "))
    two = explain_text(
        progress(9) + uncaught("ValueError: clip 9 of /mnt/c.mp4 at 0xdead is odd", "[rank7]: ")
    )
    other = explain_text(uncaught("ValueError: clip 12 of /data/a/b.mp4 at 0x7f01 is even", "[rank3]: "))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != other.fingerprint


def test_known_failure_has_the_same_fingerprint_however_it_is_shown(explain_text: Explain) -> None:
    raised = explain_text(uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."))
    warned = explain_text("cudaMalloc failed: out of memory\n")
    assert raised.fingerprint == warned.fingerprint


def test_missing_packages_of_different_names_are_different_failures(explain_text: Explain) -> None:
    names = [
        explain_text(uncaught(f"ModuleNotFoundError: No module named '{n}'")).fingerprint for n in ("a", "b")
    ]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /a/b.c at 10.0.0.7:29500", "cannot open * at *"),
        ("rank 3 of 8 took 12.5 GiB", "rank * of * took *"),
        ("id 6f9619ff-8b86-d011-b42d-00c04fc964ff is gone", "id * is gone"),
        ("first sentence ends here. The second differs", "first sentence ends here"),
    ],
)
def test_essence_of_a_message_leaves_out_what_varies(text: str, expected: str) -> None:
    assert essence(text) == expected


def test_rank_with_the_lowest_number_is_the_one_that_is_behind(explain_text: Explain) -> None:
    log = "".join(LATE.format(rank, 7752 if rank == 5 else 7753, "ALLREDUCE") for rank in range(8))
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.rank) == ("nccl_watchdog", 5)
    assert "rank 5 timed out at number 7752 (ALLREDUCE), the others at 7753" in verdict.notes


def test_rank_that_is_silent_is_named_where_the_world_size_counts_nodes(explain_text: Explain) -> None:
    log = "WORLD_SIZE=2\n" + "".join(LATE.format(rank, 40, "ALLREDUCE") for rank in range(8) if rank != 6)
    assert explain_text(log).where.rank == 6


def test_tasks_that_a_line_lists_are_all_named(explain_text: Explain) -> None:
    tasks = [f"/job:jax_worker/replica:0/task:{task}" for task in (5, 11, 12)]
    for listed in ("\n" + "\n".join(tasks), " " + ", ".join(tasks)):
        verdict = explain_text(f"The following tasks are unhealthy (stopped sending heartbeats):{listed}\n")
        assert (verdict.cause, verdict.where.task) == ("jax_task_lost", 5)
        assert "the same on tasks 11, 12" in verdict.notes


def test_rank_that_runs_another_operation_is_named(explain_text: Explain) -> None:
    log = "".join(LATE.format(rank, 40, "ALLGATHER" if rank == 2 else "ALLREDUCE") for rank in range(4))
    verdict = explain_text(log)
    assert verdict.where.rank == 2
    assert "rank 2 ran ALLGATHER; ranks 0, 1, 3 ran ALLREDUCE" in verdict.notes
    assert (verdict.kind, verdict.cause) == ("suspect", "collective_mismatch")


def test_name_that_a_terminal_cut_short_is_no_other_operation(explain_text: Explain) -> None:
    whole, cut = (LATE.format(rank, 40, "_ALLGATHER_BASE") for rank in range(2))
    assert explain_text(whole + cut.replace("_BASE, ", "_BA[451/1919]")).cause == "nccl_watchdog"


def test_sizes_of_pipeline_stages_and_messages_between_two_are_no_mismatch(explain_text: Explain) -> None:
    sized = LATE.replace("OpType={2}", "OpType={2}, NumelIn={3}, NumelOut={3}")
    stages = "".join(sized.format(rank, 40, "ALLREDUCE", 64 if rank < 4 else 8) for rank in range(8))
    assert explain_text(stages).cause == "nccl_watchdog"
    named = stages.replace("Watchdog caught", "[PG ID 3 PG GUID 5 Rank 0] Watchdog caught")
    assert explain_text(named).cause == "collective_mismatch"
    messages = "".join(LATE.format(rank, 40, "SEND" if rank else "RECV") for rank in range(4))
    assert explain_text(messages).cause == "nccl_watchdog"


def test_first_collective_that_no_rank_got_through_is_told_as_such(explain_text: Explain) -> None:
    ranks = [LATE.format(rank, 1, "ALLREDUCE") for rank in range(4)]
    verdict = explain_text("".join(ranks))
    assert (verdict.kind, verdict.cause) == ("consequence", "first_collective")
    assert "nccl-tests" in verdict.fix
    without_one = explain_text("".join(ranks[1:]))
    assert without_one.cause == "nccl_watchdog"
    assert "rank 0 reported no timeout: look there first" in without_one.notes


def test_rank_that_reports_no_timeout_is_named_where_the_world_size_is_known(explain_text: Explain) -> None:
    log = "world_size=8\n" + "".join(LATE.format(rank, 40, "ALLREDUCE") for rank in range(8) if rank != 6)
    assert explain_text(log).where.rank == 6


def test_nobody_is_blamed_where_all_ranks_wait_at_the_same_place(explain_text: Explain) -> None:
    verdict = explain_text("".join(LATE.format(rank, 40, "ALLREDUCE") for rank in range(4)))
    assert not any("others" in note and "number" in note for note in verdict.notes)
    assert not any("look there first" in note for note in verdict.notes)


def test_ranks_that_never_came_to_the_barrier_are_listed(explain_text: Explain) -> None:
    log = "".join(
        f"Timed out initializing process group in store based barrier on rank: {rank}, for key: "
        "store_based_barrier_key:1 (world_size=6, worker_count=4, timeout=0:30:00)\n"
        for rank in (0, 1, 2, 4)
    )
    verdict = explain_text(log)
    assert verdict.cause == "barrier_absent"
    assert "of 6 ranks, these did not come, according to the logs: ranks 3, 5" in verdict.notes


HERE, EPOCHS = "GLOBAL_RANK: {0}, MEMBER: {1}/2\n", "Epoch 0: 3 batches\n"


@pytest.mark.parametrize(
    "ranks",
    [
        {
            "rank0": HERE.format(0, 1) + "All distributed processes registered. Starting with 2\n" + EPOCHS,
            "rank1": HERE.format(1, 2) + EPOCHS,
        },
        {"rank1": HERE.format(1, 2) + EPOCHS},
    ],
    ids=["rank 0 says that all came", "rank 1 alone does not know"],
)
def test_nobody_is_absent_who_may_have_come(ranks: dict[str, str], explain_text: Explain) -> None:
    assert explain_text(**ranks).cause is None
    assert explain_text(**dict(reversed(ranks.items()))).cause is None


def test_confirmation_at_the_end_does_not_outrank_a_fault_of_the_code(explain_text: Explain) -> None:
    log = uncaught("KeyError: 'lr'") + "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"
    verdict = explain_text(log)
    assert verdict.title == "KeyError: 'lr'"
    assert any("memory ran out" in note for note in verdict.notes)


def test_exception_in_a_destructor_is_no_cause(explain_text: Explain) -> None:
    ignored = "Exception ignored in: <function A.__del__ at 0x1>\n" + uncaught("AttributeError: no x")
    assert explain_text(ignored + uncaught("RuntimeError: real")).title == "RuntimeError: real"


def test_evidence_of_a_long_line_shows_the_words_that_matched(explain_text: Explain) -> None:
    verdict = explain_text("step 1 " + "#" * 3000 + " NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n")
    assert "Duplicate GPU detected" in verdict.evidence[0].text


def test_exception_after_a_million_others_is_found_with_its_place(explain_text: Explain) -> None:
    caught = uncaught("ValueError: corrupt clip").replace("<module>", "__getitem__")
    log = (
        caught * 9000
        + uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried", line=91)
        + progress(9000)
    )
    verdict = explain_text(log)
    assert verdict.cause == "cuda_out_of_memory"
    assert verdict.exception is not None
    assert verdict.exception.line == 91


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("CUDA out of memory", ["cuda out of memory"]),
        (r"Got completion .*(?:error|status=)\s?12\b", ["got completion "]),
        ("[Ss]egmentation fault", ["segmentation fault"]),
        (r"killed?ing \d+ (?P<x>a|b) processes", [" processes"]),
        (r"a{0,3}bcd", ["bcd"]),
        (r"(?i:out of) (?P<what>memory|disk)", ["out of"]),
        (r"(?P<all>no space left on \w+)(?! yet)", ["no space left on "]),
        (r"\[Errno 2\] No", ["[errno 2] no"]),
        ("abcd|ef(?:gh|ij)klm|[|]nopq", ["abcd", "klm", "|nopq"]),
        (r"\d+|abc", [""]),
    ],
)
def test_every_match_holds_one_of_the_texts_that_a_pattern_needs(source: str, texts: list[str]) -> None:
    assert needed(source) == texts


def test_pattern_set_names_the_patterns_that_match() -> None:
    patterns = PatternSet(index_of(["out of memory", "[xy]", "memory leak|no disk", "memory leak"]))
    assert [number for number, _ in patterns.matches("CUDA out of memory")] == [0, 1]
    assert [number for number, _ in patterns.matches("NO DISK, no disk")] == [2]


def test_a_rank_of_a_part_of_the_job_is_no_rank_of_the_job(explain_text: Explain) -> None:
    late = LATE.format(0, 7, "ALLREDUCE").partition("[Rank 0] ")[2]
    groups = {"[PG ID 1 PG GUID 4(tp) Rank 0] ": None, "[PG ID 0 PG GUID 0(default_pg) Rank 5] ": 5}
    for group, rank in groups.items():
        verdict = explain_text(f"[E ProcessGroupNCCL.cpp:607] {group}{late}")
        assert (verdict.cause, verdict.where.rank) == ("nccl_watchdog", rank)
        assert explain_text(f"[rank7]:[E1121 03:14:05.1 x.cpp:607] {group}{late}").where.rank == 7


def test_ranks_that_a_stall_lists_as_missing_are_all_named(explain_text: Explain) -> None:
    stall = "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks\n"
    missing = "".join(f"{rank}: [DistributedSGD_Allreduce/HorovodAllreduce_grads_0]\n" for rank in (1, 6))
    verdict = explain_text(f"{stall}Missing ranks:\n{missing}")
    assert (verdict.cause, verdict.where.rank, verdict.details["missing ranks"]) == (
        "horovod_stall",
        None,
        "1, 6",
    )


def test_what_nccl_says_last_is_in_the_message(explain_text: Explain) -> None:
    error = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2\n"
    )
    verdict = explain_text(f"{error}ncclSystemError: System call failed.\nLast error:\nthe odd thing\n")
    assert verdict.cause == "nccl_system_error"
    assert verdict.exception is not None
    assert verdict.exception.message.endswith("Last error:\nthe odd thing")


def test_the_master_s_endpoint_stands_in_the_advice(explain_text: Explain) -> None:
    waited = "The client socket has timed out after 60s while trying to connect to ({}, 29500).\n"
    elsewhere = explain_text(waited.format("gn7"))
    assert "nc -zv gn7 29500" in elsewhere.fix
    assert "nc -zv gn7 29500" in elsewhere.to_do("zh")
    assert explain_text(waited.format("localhost")).cause == "master_local"
    hostile = explain_text(waited.format("$(reboot)"))
    assert (hostile.cause, "reboot" in hostile.fix) == ("master_unreachable", False)


ALONE = (
    "[rank0]:[E1218 20:43:21.1 x.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600036 "
    "milliseconds before timing out.\n"
    "[rank0]:[E1218 20:43:21.2 x.cpp:2168] [PG ID 1 PG GUID 1 Rank 0]  failure detected by watchdog "
    "at work sequence id: {number} PG status: last enqueued work: 547, last completed work: {done}\n"
    "[rank0]:[E1218 20:43:21.3 x.cpp:681] [Rank 0] Some NCCL operations have failed or timed out.\n"
)


def test_only_rank_that_reports_says_itself_that_nothing_was_ever_completed(explain_text: Explain) -> None:
    first = explain_text(ALONE.format(number=1, done=-1))
    assert (first.kind, first.cause, first.where.rank) == ("consequence", "first_collective", 0)
    assert "NCCL_P2P_DISABLE=1" in first.fix
    assert explain_text(ALONE.format(number=40, done=39)).cause == "nccl_watchdog"
    other_group = ALONE.format(number=7, done=6).replace("PG ID 1 PG GUID 1", "PG ID 0 PG GUID 0")
    assert explain_text(other_group + ALONE.format(number=1, done=-1)).cause == "nccl_watchdog"


def test_no_rank_is_called_silent_in_a_log_that_ends_within_a_report(explain_text: Explain) -> None:
    ranks = "".join(LATE.format(rank, 1580, "ALLREDUCE") for rank in (0, 4, 2))
    whole = explain_text(ranks)
    assert any(one.id == "no-timeout" for one in whole.noted)
    torn = explain_text(ranks + LATE.format(3, 1580, "ALLREDUCE").partition("ran for")[0] + "ran fo")
    assert torn.cause == "nccl_watchdog"
    assert not any(one.id == "no-timeout" for one in torn.noted)
