"""What the output of a training says beyond its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.health.finding import Grade, NodeHealth
from platform_launch.launch.training_output import TrainingOutput, wants_port
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, RunOutcome, UnwellNode
from platform_launch.rendezvous.messages import Message, decode, encode
from platform_launch.rendezvous.run.deciding import MOST_UNWELL
from platform_launch.rendezvous.run.state import RunPhase, RunState, StopAll, TrainingEnded

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
