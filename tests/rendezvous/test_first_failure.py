"""Which of several failures came first, and which lines describe it best."""

from __future__ import annotations

from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, describe_ending
from platform_launch.rendezvous.first_failure import blames_others, first_failure, last_words

TORCHRUN = """[node 1] Traceback (most recent call last):
[node 1]   File "/job/train.py", line 88, in <module>
[node 1]     main()
[node 1]   File "/job/train.py", line 41, in main
[node 1]     raise ValueError("the data is wrong")
[node 1]     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[node 1] ValueError: the data is wrong
[node 1] E1121 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0
[node 1] Traceback (most recent call last):
[node 1]   File "torch/distributed/run.py", line 1032, in <module>
[node 1] torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def ended(rank: int, at_s: float, *lines: str, kind: EndKind = EndKind.FAILED) -> NodeEnding:
    return NodeEnding(kind, rank, f"gpu-{rank}", 1, Cause("", lines, lines), ended_at_s=at_s)


def test_the_earliest_failure_is_the_cause() -> None:
    cause = first_failure([ended(1, 20.0, "KeyError: 'b'"), ended(0, 19.0, "KeyError: 'a'")])
    assert cause is not None
    assert cause.node_rank == 0


def test_lost_connection_is_a_consequence_even_if_reported_earlier() -> None:
    lost = ended(0, 19.0, "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:4711")
    cause = first_failure([lost, ended(1, 19.4, "ValueError: the data is wrong")])
    assert cause is not None
    assert cause.node_rank == 1


def test_lost_connection_is_the_cause_if_nothing_else_is_known() -> None:
    cause = first_failure([ended(0, 19.0, "Connection reset by peer")])
    assert cause is not None
    assert blames_others(cause)


def test_if_all_lost_a_connection_the_cause_is_its_peer() -> None:
    """A rank that exits early prints nothing; its peers on both nodes print its address."""
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"
    rank_of = {"10.0.0.1": 0, "10.0.0.2": 1}
    cause = first_failure([ended(0, 19.0, lost), ended(1, 19.4, lost)], rank_of)
    assert cause is not None
    assert (cause.kind, cause.node_rank) == (EndKind.FAILED, 1)


def test_node_that_finished_early_is_named_with_the_consequence() -> None:
    lost = "Connection closed by peer [10.0.0.2]:4711"
    finished = NodeEnding(EndKind.FINISHED, 1, "gpu-1", 0)
    cause = first_failure([ended(0, 19.0, lost), finished], {"10.0.0.2": 1})
    assert cause is not None
    assert (cause.kind, cause.node_rank, cause.exit_code) == (EndKind.LEFT, 1, 1)
    assert describe_ending(cause).startswith(
        "node 1, gpu-1: ranks exited early there, and the others then lost their connections to them"
    )


def test_advice_is_not_evidence() -> None:
    told = ("cause:      ValueError: 3", "fix:        raise the socket timeout, or look at the watchdog")
    ending = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, Cause("python_exception", ("ValueError: 3",), told))
    assert not blames_others(ending)


def test_stopped_or_finished_job_is_no_failure() -> None:
    assert first_failure([ended(0, 1.0, kind=EndKind.STOPPED), ended(1, 2.0, kind=EndKind.FINISHED)]) is None


def test_excerpt_is_the_end_of_the_first_traceback() -> None:
    assert last_words(TORCHRUN) == (
        '  File "/job/train.py", line 41, in main',
        '    raise ValueError("the data is wrong")',
        "ValueError: the data is wrong",
    )


def test_traceback_with_rank_prefixes_is_found() -> None:
    text = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 1\n[rank3]: KeyError: 1\n'
    )
    assert last_words(text)[-1] == "KeyError: 1"


def test_excerpt_without_a_traceback_is_the_last_lines() -> None:
    log = "\n".join(f"line {number}" for number in range(9)) + "\n\n"
    assert last_words(log) == ("line 4", "line 5", "line 6", "line 7", "line 8")


def test_progress_bars_colours_and_huge_lines_are_cleaned_up() -> None:
    log = "10%\r20%\r\x1b[31m30%\x1b[0m\n" + "x" * 10_000 + "\n"
    words = last_words(log)
    assert words[:3] == ("10%", "20%", "30%")
    assert len(words[3]) == 240


def test_empty_output_has_no_excerpt() -> None:
    assert last_words("") == ()


def test_launcher_lines_are_not_part_of_the_excerpt() -> None:
    log = (
        "[node 1] 12:00:00 [INFO] a fact\n"
        "[node 1] 12:00:01 [SUCCESS] roll call: all 2 nodes are connected [roll-call-complete]\n"
    )
    assert last_words(log) == ()
    assert last_words(f"{log}[node 1] step 1\n") == ("step 1",)
