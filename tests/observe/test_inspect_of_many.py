"""``inspect`` of a job of 64 nodes: their rendezvous is real, what they see is made up."""

from __future__ import annotations

from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread

from platform_launch.console.languages import translate
from platform_launch.launch.peers import LinkPeers
from platform_launch.observe.collectives import ranks_named
from platform_launch.observe.hang import judge
from platform_launch.observe.monitor import NodeReply, Replies
from platform_launch.observe.overview import finding_lines, overview, rarest, stack_lines
from platform_launch.observe.snapshot import NodeSnapshot
from platform_launch.observe.words import english, message
from platform_launch.rendezvous.participant import Participant
from platform_launch.rendezvous.run.texts import RequestRelay, TextCommand
from tests.observe.test_hang import VALIDATE, absent, waiting
from tests.rendezvous.live import LIMIT_S, live, until

NODES = 64
LATE = 77


class Node:
    """A launcher."""

    def __init__(self, rank: int, participant: Participant) -> None:
        self.participant = participant
        self._commands: SimpleQueue[TextCommand] = SimpleQueue()
        ranks = tuple(absent(r, VALIDATE) if r == LATE else waiting(r) for r in (2 * rank, 2 * rank + 1))
        self.snapshot = NodeSnapshot(rank, f"gn{rank}", 0.0, ranks)
        self.peers = LinkPeers(
            self._commands.put, lambda still_s: NodeReply(still_s, self.snapshot), lambda _report: None
        )
        self._asking = RequestRelay(self.peers.receive)

    def step(self) -> None:
        """Do what a launcher does again and again."""
        self.participant.step()
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                break
            self._asking.pass_on(command, self.participant)
        self._asking.step(self.participant)


def test_64_nodes_answer_and_are_shown_on_one_screen() -> None:
    with live(NODES) as rendezvous:
        nodes = [Node(rank, rendezvous.participant(rank)) for rank in range(NODES)]
        for node in nodes:
            node.participant.join()
        until(
            lambda: all(node.participant.membership for node in nodes), *(node.participant for node in nodes)
        )
        replies: list[Replies] = []
        asking = Thread(target=lambda: replies.append(nodes[5].peers.query(0.0, LIMIT_S)))
        asking.start()
        while asking.is_alive():
            for node in nodes:
                node.step()
    (heard,) = replies
    assert sorted(heard.given) == [rank for rank in range(NODES) if rank != 5]
    assert heard.silent == {}
    seen = [reply.snapshot for reply in heard.given.values() if reply.snapshot is not None]
    lines = [english(line) for line in overview([*seen, nodes[5].snapshot], heard.silent)]
    assert len(lines) == 2
    assert lines[0].startswith("ranks 0-76 and 78-127: /job/train.py:56 in step")
    assert lines[1] == "rank 77 (node 38, gn38, pid 177): /job/train.py:88 in validate"


def test_of_many_ranks_a_person_reads_a_screen_and_the_odd_ranks_first() -> None:
    template, late = waiting(0), absent(0, VALIDATE)
    odd = {7, 234, 499}
    nodes = [
        NodeSnapshot(
            node, f"gn{node}", 0.0, tuple(replace(late if r in odd else template, rank=r) for r in ranks)
        )
        for node in range(125)
        for ranks in (range(4 * node, 4 * node + 4),)
    ]
    silent = {node: f"gn{node}" for node in range(125, 250)}
    finding = [english(line) for line in finding_lines(judge(nodes, 1000, silent), 60.0)]
    assert all(len(line) < 4000 for line in (*finding, *map(english, overview(nodes, {}))))
    few = rarest(nodes, 8)
    seen = [rank.rank for node in few for rank in node.ranks]
    assert (set(seen[:3]), len(seen)) == (odd, 8)
    assert sum(line.startswith("rank ") for line in stack_lines(few)) == 8
    chinese = stack_lines(few, lambda line: translate(message(line), "zh"))
    assert chinese.count("  主线程") == stack_lines(few).count("  main thread") > 0


def test_scattered_ranks_are_named_in_few_words() -> None:
    assert english(ranks_named(range(0, 5000, 2))).endswith("28, 30 and 2484 more")
    assert english(ranks_named((*range(15), 16))) == "ranks 0-14 and 16"
