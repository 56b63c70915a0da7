"""Which of several failures came first, and which words say it best."""

from __future__ import annotations

from platform_launch.rollcall.cause import Report, first_cause, last_words

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


def report(rank: int, at_s: float, *words: str, exit_code: int = 1, stopped_by: str | None = None) -> Report:
    return Report(rank, f"gpu-{rank}", exit_code, stopped_by, at_s, words)


def test_the_earliest_failure_is_the_cause() -> None:
    cause = first_cause([report(1, 20.0, "KeyError: 'b'"), report(0, 19.0, "KeyError: 'a'")])
    assert cause is not None
    assert cause.node_rank == 0


def test_a_lost_connection_is_a_consequence_even_when_it_was_reported_earlier() -> None:
    lost = report(0, 19.0, "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:4711")
    cause = first_cause([lost, report(1, 19.4, "ValueError: the data is wrong")])
    assert cause is not None
    assert cause.node_rank == 1


def test_a_lost_connection_stands_when_nobody_says_more() -> None:
    cause = first_cause([report(0, 19.0, "Connection reset by peer")])
    assert cause is not None
    assert cause.blames_others


def test_advice_is_not_taken_for_evidence() -> None:
    words = ("cause:      ValueError: 3", "fix:        raise the socket timeout, or look at the watchdog")
    assert not report(0, 1.0, *words).blames_others


def test_a_training_that_was_stopped_or_finished_is_no_cause() -> None:
    assert first_cause([report(0, 1.0, stopped_by="SIGTERM"), report(1, 2.0, exit_code=0)]) is None


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
    log = "[node 1] [INFO] log: /logs/a.log\n[node 1] [SUCCESS] roll call: all 2 nodes are here\n"
    assert last_words(log) == ()
    assert last_words(f"{log}[node 1] step 1\n") == ("step 1",)
