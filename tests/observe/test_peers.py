from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from platform_launch.events import Event
from platform_launch.launch.cost import RunClock
from platform_launch.launch.hang_watch import HangWatch
from platform_launch.launch.peers import (
    HangNotice,
    LinkPeers,
    StillAnswer,
    StillQuestion,
    pack,
    unpack,
)
from platform_launch.launch.training_command import HangOptions
from platform_launch.observe.hang import Culprit, FindingKind, HangFinding
from platform_launch.observe.memory import MemoryHeld
from platform_launch.observe.monitor import HangReport, NodeReply
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.snapshot import ChildSnapshot, NodeSnapshot, RankSnapshot, shortened
from platform_launch.observe.stacks import PythonFrame, ThreadStack
from platform_launch.observe.work import Work
from platform_launch.rendezvous.messages import InvalidMessageError
from platform_launch.rendezvous.run.texts import (
    AnswersReceived,
    RequestReceived,
    SendAnswer,
    SendRequest,
    TextCommand,
)
from platform_launch.sentences import sentence
from tests.lab.waiting import until
from tests.observe.test_hang import waiting

FINDING = HangFinding(
    FindingKind.HANG,
    (
        Culprit(
            3,
            1,
            "gn7",
            812,
            "GPU 3",
            "stopped",
            sentence("at", what=sentence("halted", pid=812), frame="f"),
            False,
        ),
    ),
    (sentence("ranks", numbers=["0-2", sentence("rank", numbers="3")]),),
    (sentence("more-ranks", count=3),),
    (3,),
)


def snapshot(threads: int = 2) -> NodeSnapshot:
    frames = tuple(PythonFrame("/job/train.py", number, f"f{number}") for number in range(200))
    stacks = tuple(ThreadStack(number == 0, frames, "t") for number in range(threads))
    other = RankSnapshot(
        1,
        1,
        ProcessState(7, "p", "D", "nfs_wait", ("a", "b"), "/data", 1.5, 2.5, 9),
        stacks,
        "torch",
        gil_held=True,
        moving=None,
        work=Work(150.0, 0.5, 0.1, 0.2, 3e4, 9, "cc1plus"),
        children=(ChildSnapshot(ProcessState(8), stacks),),
        problems=("none",),
    )
    return NodeSnapshot(2, "gn7", 1.0, (waiting(0), other), {0: "GPU 0"}, MemoryHeld(1.5, {0: 53.0}))


@pytest.mark.parametrize(
    "message",
    [StillQuestion(300.0), StillAnswer(3.0), StillAnswer(3.0, snapshot()), HangNotice(9.0, FINDING, 2)],
)
def test_what_travels_comes_back_equal(message: StillQuestion | StillAnswer | HangNotice) -> None:
    assert unpack(pack(message)) == message


def test_a_notice_whose_words_are_of_another_version_is_left_out() -> None:
    def say(report: HangReport) -> None:
        report.finding.lines()
        said.append(report)

    said: list[HangReport] = []
    peers = LinkPeers(lambda _message: None, lambda _still_s: NodeReply(0.0), say)
    newer = replace(FINDING, waiting=(sentence("of-a-newer-version"),))
    for finding in (newer, FINDING):
        peers._handle(RequestReceived("0-1", pack(HangNotice(9.0, finding, 0))))
    assert [report.finding for report in said] == [FINDING]


@pytest.mark.parametrize("text", ["", "?", base64.b64encode(b"no zlib").decode()])
def test_what_no_node_packed_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError):
        unpack(text)


def test_what_a_stranger_packed_is_refused() -> None:
    for form in ('["StillQuestion", {"still_s": "long"}]', '["StopAll", {}]', " " * 64 * 1024 * 1024):
        with pytest.raises(InvalidMessageError):
            unpack(base64.b64encode(zlib.compress(form.encode())).decode())


def test_snapshot_of_many_threads_is_shortened() -> None:
    short = shortened(snapshot(threads=100))
    assert len(short.ranks[1].threads) == 12
    assert all(len(thread.frames) == 64 for thread in short.ranks[1].threads)
    assert len(pack(StillAnswer(1.0, short))) < 100_000


class Wire:
    """Two launchers' ends, joined as the rendezvous would join them."""

    def __init__(self) -> None:
        self.noticed: list[HangReport] = []
        self.asking = LinkPeers(self._from_asking, lambda _s: NodeReply(0.0), self.noticed.append)
        self.other = LinkPeers(self._from_other, self._answer, self.noticed.append)
        self.silent = False

    def _answer(self, still_s: float) -> NodeReply:
        return NodeReply(still_s + 1, snapshot())

    def _from_asking(self, message: TextCommand) -> None:
        assert isinstance(message, SendRequest)
        self.number = message.number
        if self.silent:
            self.asking.receive(AnswersReceived(message.number, {}, {2: "gn7"}))
        else:
            self.other.receive(RequestReceived("0-1", message.body))

    def _from_other(self, message: TextCommand) -> None:
        assert isinstance(message, SendAnswer)
        self.asking.receive(AnswersReceived(self.number, {2: message.body}, {}))


def test_node_asks_and_the_other_answers() -> None:
    replies = Wire().asking.query(30.0, 20.0)
    assert replies.given[2].still_s == 31.0
    assert replies.given[2].snapshot == shortened(snapshot())
    assert replies.silent == {}


def test_node_that_does_not_answer_is_named() -> None:
    wire = Wire()
    wire.silent = True
    assert wire.asking.query(30.0, 20.0).silent == {2: "gn7"}


def test_an_answer_that_nobody_waits_for_any_more_is_not_kept() -> None:
    wire = Wire()
    wire.silent = True
    wire.asking.report(HangReport(9.0, FINDING))
    wire.asking.query(30.0, 20.0)
    wire.asking.receive(AnswersReceived(2, {}, {}))
    assert not wire.asking._answered


def test_what_was_found_is_noticed_by_the_other_node() -> None:
    wire = Wire()
    wire.asking.report(HangReport(9.0, FINDING, hang=2))
    until(lambda: wire.noticed)
    assert wire.noticed == [HangReport(9.0, FINDING, hang=2)]


def test_details_of_a_hang_are_reported_again_only_if_they_changed() -> None:
    reported: list[Event] = []
    options = HangOptions(Path(), node_rank=1, world_size=4, host="gn7", log=Path())
    watch = HangWatch(options, reported.append, lambda _report: None, None, dict, RunClock())
    changed = replace(FINDING, waiting=())
    lines = []
    for finding, hang in ((FINDING, 0), (FINDING, 0), (changed, 0), (changed, 0), (changed, 1)):
        reported.clear()
        watch._on_notice(HangReport(9.0, finding, hang=hang))
        assert [one.id for one in reported] == ["no-progress"] + ["no-progress-detail"] * (len(reported) - 1)
        lines.append(len(reported))
    assert lines == [3, 1, 2, 1, 2]


@pytest.mark.parametrize(("send", "events"), [(None, 3), (lambda _command: None, 1)])
def test_details_of_a_hang_that_stops_several_nodes_come_with_their_verdict(
    send: Callable[[TextCommand], None] | None, events: int
) -> None:
    reported: list[Event] = []
    options = HangOptions(Path(), node_rank=1, world_size=4, host="gn7", log=Path(), on_hang="stop")
    watch = HangWatch(options, reported.append, lambda _report: None, send, dict, RunClock())
    watch._on_notice(HangReport(9.0, FINDING))
    assert len(reported) == events
