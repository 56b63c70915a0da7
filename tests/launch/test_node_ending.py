"""How one attempt ended on this node, as the other nodes are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.console import languages
from platform_launch.events import event
from platform_launch.health.finding import Grade, NodeHealth
from platform_launch.launch.node_ending import TrainingOutput, of_hang, of_training, wants_port
from platform_launch.observe.hang import Culprit, FindingKind, HangFinding
from platform_launch.observe.monitor import HangReport
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import Message, decode, encode
from platform_launch.rendezvous.run.deciding import MOST_UNWELL
from platform_launch.rendezvous.run.state import RunPhase, RunState, StopAll, TrainingEnded
from platform_launch.sentences import sentence
from platform_launch.supervise import Outcome

NODE = Fingerprint(0, 2, "gn6", ("10.0.0.6",), "one", None)


def told(*waiting: str) -> tuple[str, ...]:
    culprit = Culprit(3, 1, "gn7", 812, "", "naps", sentence("naps"), False, ("main (train.py:7)",))
    wait = tuple(sentence(code, numbers=["0-2"], last="5") for code in waiting)
    cause = of_hang(NODE, HangReport(300.0, HangFinding(FindingKind.HANG, (culprit,), wait, (), (3,)))).cause
    assert cause is not None
    return cause.lines


@pytest.fixture
def in_chinese() -> Iterator[None]:
    languages.choose("zh")
    yield
    languages._chosen.clear()


def test_a_hang_is_told_with_who_is_stuck_and_where() -> None:
    assert told("ranks-and") == (
        "rank 3 (node 1, gn7, pid 812) sleeps",
        "  ranks 0-2 and 5",
        "  rank 3:   main (train.py:7)",
    )


@pytest.mark.usefixtures("in_chinese")
def test_a_hang_is_told_in_the_language_of_the_launch() -> None:
    assert told("ranks-and") == (
        "rank 3（节点 1、gn7、pid 812）：在睡眠（sleep）",
        "  rank 0-2、5",
        "  rank 3:   main (train.py:7)",
    )


PYTHON = b"OSError: [Errno 98] Address already in use\n"
SERVER = b"OSError: [Errno 98] Address already in use (while attempting to bind on address ('', 29501))\n"
TORCH = (
    b"torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    b"address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)


@pytest.mark.parametrize(
    ("tail", "port", "wanted"),
    [
        (PYTHON, 29501, True),
        (TORCH, 29501, True),
        (TORCH, 29511, False),
        (TORCH + PYTHON, 29511, False),
        (SERVER, 29501, True),
        (SERVER, 29511, False),
        (b"ValueError: port 29501 is not wanted\n", 29501, False),
        (b"", 29501, False),
    ],
)
def test_a_training_that_lacks_a_port_is_known(tail: bytes, port: int, wanted: bool) -> None:
    assert wants_port(tail, port) is wanted


def why(message: str) -> Cause:
    text = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{message}\n'
    cause = TrainingOutput(Path("log"), text.encode).why()
    assert cause is not None
    return cause


@pytest.mark.parametrize("letter", ["x", "\u574f", "\U0001f525"])
def test_whatever_letters_a_log_is_written_in_the_end_of_a_run_is_told(letter: str) -> None:
    found = why(f"ValueError: {letter * 1000}")
    assert any(line.count(letter) > 100 for line in found.evidence)
    cause = Cause("value_error", found.evidence[-1:] * 10, found.evidence[-1:] * 10)
    unwell = NodeHealth(Grade.SUSPECT, ("GPU 3: its clock is held down most of the time: power cap",) * 8)
    ending = NodeEnding(EndKind.FAILED, 1, "gn1", 1, cause, health=unwell)
    outcome = RunOutcome(
        1, ending, unwell=tuple(UnwellNode(rank, "gn1", unwell) for rank in range(MOST_UNWELL))
    )
    state = RunState(RunPhase.ENDED, 2, outcome=outcome)
    for message in (TrainingEnded(ending, None), StopAll(ending), state):
        assert decode(encode(message), Message) == message


def test_the_reason_that_a_job_gives_is_what_other_nodes_are_told() -> None:
    tail = b"[0]:\n  exitcode  : 66 (pid: 12)\n"
    reason = event("training-reason", exit_code=66, reason="no video in /data")
    without = TrainingOutput(Path("log"), lambda: tail).why()
    cause = TrainingOutput(Path("log"), lambda: tail, lambda: reason).why()
    assert cause is not None
    assert cause.id == "training_refused"
    assert any("no video in /data" in line for line in cause.lines)
    assert without is None or without.id != "training_refused"


@pytest.mark.parametrize(
    ("signal", "exit_code", "shown"),
    [("SIGKILL", 137, "cause:      a process was killed"), (None, 3, "step 7")],
)
def test_a_signal_is_the_cause_of_what_the_output_does_not_explain(
    signal: str | None, exit_code: int, shown: str
) -> None:
    outcome = Outcome(exit_code, signal, 1.0, None, None, ())
    cause = of_training(NODE, outcome, TrainingOutput(Path("log"), lambda: b"step 7\n"), None).cause
    assert cause is not None
    assert cause.lines[0].startswith(shown)
