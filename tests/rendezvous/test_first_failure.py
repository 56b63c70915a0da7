"""Which of several failures came first, and which lines say it best."""

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


def test_a_lost_connection_is_a_consequence_even_when_it_was_reported_earlier() -> None:
    lost = ended(0, 19.0, "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:4711")
    cause = first_failure([lost, ended(1, 19.4, "ValueError: the data is wrong")])
    assert cause is not None
    assert cause.node_rank == 1


def test_a_lost_connection_stands_when_nobody_says_more() -> None:
    cause = first_failure([ended(0, 19.0, "Connection reset by peer")])
    assert cause is not None
    assert blames_others(cause)


def test_where_all_lost_a_connection_it_is_the_node_that_these_led_to() -> None:
    """A rank that leaves says nothing; its partners on both nodes name its address."""
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"
    rank_of = {"10.0.0.1": 0, "10.0.0.2": 1}
    cause = first_failure([ended(0, 19.0, lost), ended(1, 19.4, lost)], rank_of)
    assert cause is not None
    assert (cause.kind, cause.node_rank) == (EndKind.FAILED, 1)


def test_a_node_that_finished_while_others_trained_is_named_with_what_followed() -> None:
    lost = "Connection closed by peer [10.0.0.2]:4711"
    finished = NodeEnding(EndKind.FINISHED, 1, "gpu-1", 0)
    cause = first_failure([ended(0, 19.0, lost), finished], {"10.0.0.2": 1})
    assert cause is not None
    assert (cause.kind, cause.node_rank, cause.exit_code) == (EndKind.LEFT, 1, 1)
    assert describe_ending(cause).startswith(
        "node 1, gpu-1: ranks exited early there, and the others then lost their connections to them"
    )


def test_advice_is_not_taken_for_evidence() -> None:
    told = ("cause:      ValueError: 3", "fix:        raise the socket timeout, or look at the watchdog")
    ending = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, Cause("python_exception", ("ValueError: 3",), told))
    assert not blames_others(ending)


def test_a_training_that_was_stopped_or_finished_is_no_failure() -> None:
    assert first_failure([ended(0, 1.0, kind=EndKind.STOPPED), ended(1, 2.0, kind=EndKind.FINISHED)]) is None


def test_last_words_are_the_end_of_the_first_traceback() -> None:
    assert last_words(TORCHRUN) == (
        '  File "/job/train.py", line 41, in main',
        '    raise ValueError("the data is wrong")',
        "ValueError: the data is wrong",
    )


def test_a_rank_before_each_line_does_not_hide_a_traceback() -> None:
    text = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 1\n[rank3]: KeyError: 1\n'
    )
    assert last_words(text)[-1] == "KeyError: 1"


def test_without_a_traceback_the_last_lines_stand() -> None:
    log = "\n".join(f"line {number}" for number in range(9)) + "\n\n"
    assert last_words(log) == ("line 4", "line 5", "line 6", "line 7", "line 8")


def test_progress_bars_colours_and_monsters_do_not_confuse() -> None:
    log = "10%\r20%\r\x1b[31m30%\x1b[0m\n" + "x" * 10_000 + "\n"
    words = last_words(log)
    assert words[:3] == ("10%", "20%", "30%")
    assert len(words[3]) == 240


def test_nothing_said_gives_no_words() -> None:
    assert last_words("") == ()


def test_what_the_launcher_said_before_the_training_is_not_its_last_word() -> None:
    log = (
        "[node 1] 12:00:00 [INFO] a fact\n"
        "[node 1] 12:00:01 [SUCCESS] roll call: all 2 nodes are connected [roll-call-complete]\n"
    )
    assert last_words(log) == ()
    assert last_words(f"{log}[node 1] step 1\n") == ("step 1",)
