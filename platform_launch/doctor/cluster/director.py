"""Node 0 directs the cluster check: it publishes each stage, and continues without silent nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from platform_launch.doctor.cluster import pairing
from platform_launch.doctor.cluster.document import (
    DoctorState,
    DoctorTask,
    Document,
    Endpoint,
    Measurement,
    ReachReport,
    Share,
)
from platform_launch.doctor.cluster.pairing import Group
from platform_launch.rendezvous import large_packets
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.protocol import RejectionKind
from platform_launch.rendezvous.ranks import describe_absent, describe_nodes
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.text import Phrase

# In addition to a node's own limit, for sending its answer.
MARGIN_S = 10.0
CONNECT_LIMIT_S = 5.0
_LEAVE_LIMIT_S = 15.0
_LARGEST_WHOLE = 64  # nodes that try one collective all together
_STEP_S = 0.05
# Nodes that start together need no report about small delays.
_SAY_FIRST_S, _SAY_EVERY_S = 2.0, 10.0


def longest_s(task: DoctorTask) -> float:
    """Return the longest time that the cluster check can take: every stage to its limit."""
    rounds_s = pairing.ROUNDS * (task.collective_limit_s + MARGIN_S)
    return task.join_limit_s + connect_limit_s(task.nnodes) + MARGIN_S + rounds_s + MARGIN_S


def connect_limit_s(nnodes: int) -> float:
    """Return how long a node may take to try all others, a few hundred at a time."""
    return CONNECT_LIMIT_S * (2 + nnodes / 256) + large_packets.longest_s(nnodes)


class Director:
    """Directs one cluster check from a thread of node 0's part; ``log`` prints lines for the user."""

    def __init__(
        self, coordinator: Coordinator, task: DoctorTask, log: Callable[[ConsoleLine], None]
    ) -> None:
        self._coordinator = coordinator
        self._task = task
        self._log = log
        self._endpoints: dict[int, Endpoint] = {}
        self._duplicates: dict[int, str] = {}
        self._everyone = range(task.nnodes)
        self._ranks = coordinator.membership.ranks
        self._foreign: dict[int, str] = {}
        self._silent: set[int] = set()
        self._gaps: set[tuple[int, int]] = set()
        self._measurements: list[Measurement] = []
        self._round = 0

    def lead(self) -> None:
        """Direct the check from the first join to the last leave."""
        coordinator, everyone, ranks = self._coordinator, self._everyone, self._ranks
        coordinator.publish(DoctorState())
        self._await_all()
        for rank, member in sorted(ranks.items()):
            if isinstance(member.details, Endpoint):
                self._endpoints[rank] = member.details
        coordinator.publish(DoctorState(self._endpoints))
        self._await_answers(
            lambda rank: rank in coordinator.values(ReachReport),
            self._answering(),
            connect_limit_s(len(self._endpoints)) + MARGIN_S,
        )
        answers = coordinator.values(ReachReport)
        self._gaps = {(a, b) for a, found in answers.items() for gap in found.gaps for b in gap.ranks}
        self._measure(self._connected())
        document = Document(
            endpoints=self._endpoints,
            absent=tuple(rank for rank in everyone if rank not in {**self._endpoints, **self._foreign}),
            duplicates=self._duplicates,
            foreign=self._foreign,
            silent=tuple(sorted(self._silent)),
            reach={rank: found.gaps for rank, found in answers.items()},
            master_port={rank: found.master_port for rank, found in answers.items() if found.master_port},
            master_unnamed=tuple(rank for rank, found in answers.items() if found.master_unnamed),
            measurements=tuple(self._measurements),
            clock_offsets_s=self._clock_offsets_s(),
        )
        coordinator.publish(DoctorState(self._endpoints, self._round, document=document))
        self._wait(self._all_left, _LEAVE_LIMIT_S)

    def _await_all(self) -> None:
        """Wait until every node has joined, and report now and then which have not."""
        began = time.monotonic()
        self._wait(lambda: not self._absent(), min(_SAY_FIRST_S, self._task.join_limit_s))
        while (absent := self._absent()) and (
            left_s := self._task.join_limit_s - (time.monotonic() - began)
        ) > 0:
            who = describe_absent(absent, self._task.nnodes, {})
            text = Phrase(
                "still waiting after {waited:.0f} s: {text}", waited=time.monotonic() - began, text=who
            )
            self._log(ConsoleLine("INFO", text, "rendezvous-waiting"))
            self._wait(lambda: not self._absent(), min(_SAY_EVERY_S, left_s))

    def _clock_offsets_s(self) -> dict[int, float]:
        """Return each node's clock minus this node's, if it is known to differ."""
        clocks = {rank: self._coordinator.clock_of(member) for rank, member in self._ranks.items()}
        return {rank: clock[0] for rank, clock in clocks.items() if clock and abs(clock[0]) > clock[1]}

    def _absent(self) -> list[int]:
        here = self._ranks.keys() | self._foreign.keys()
        return [rank for rank in self._everyone if rank not in here]

    def _wait(self, done: Callable[[], bool], limit_s: float) -> None:
        """Step the rendezvous until a condition holds, or the limit is over."""
        deadline = time.monotonic() + limit_s
        while not done() and time.monotonic() < deadline:
            for change in self._coordinator.step():
                rejection, node = change.rejection, change.member.node
                if rejection is not None and rejection.kind is RejectionKind.RANK_TAKEN:
                    self._duplicates[rejection.node_rank] = node.host
                elif rejection is not None and rejection.kind is RejectionKind.OTHER_PROTOCOL:
                    rank = rejection.node_rank
                    if rank in self._everyone and rank not in self._ranks:
                        self._foreign[rank] = launch_error(rejection).message
            time.sleep(_STEP_S)

    def _await_answers(
        self, has_answered: Callable[[int], bool], ranks: Sequence[int], limit_s: float
    ) -> None:
        """Wait for the answers of some nodes; those without one count as silent from here on."""
        self._wait(lambda: all(has_answered(rank) for rank in ranks), limit_s)
        self._silent |= {rank for rank in ranks if not has_answered(rank)}

    def _answering(self) -> list[int]:
        return [rank for rank in self._endpoints if rank not in self._silent]

    def _connected(self) -> list[int]:
        """Return the nodes that can reach at least one other; the matrix reports the rest."""
        ranks = self._answering()
        return [rank for rank in ranks if any(o != rank and self._can_reach((rank, o)) for o in ranks)]

    def _measure(self, ranks: Sequence[int]) -> None:
        self._run(pairing.first(ranks))
        self._run(pairing.second(ranks, self._measurements))
        self._run(pairing.third(ranks))
        if 2 < len(ranks) <= _LARGEST_WHOLE and not any(found.problem for found in self._measurements):
            self._run([tuple(ranks)])

    def _run(self, groups: Sequence[Group]) -> None:
        """Let those groups whose members reach each other run their collective at the same time."""
        groups = [group for group in groups if self._can_reach(group)]
        if not groups:
            return
        self._coordinator.publish(DoctorState(self._endpoints, self._round, tuple(groups)))
        ranks = [rank for group in groups for rank in group]
        self._await_answers(
            lambda rank: rank in self._shares(), ranks, self._task.collective_limit_s + MARGIN_S
        )
        shares = self._shares()
        for group in groups:
            silent = tuple(rank for rank in group if rank not in shares)
            self._measurements.append(_joined(group, silent, [shares[r] for r in group if r in shares]))
        self._round += 1

    def _shares(self) -> dict[int, Share]:
        shares = self._coordinator.values(Share)
        return {rank: share for rank, share in shares.items() if share.round == self._round}

    def _can_reach(self, group: Group) -> bool:
        pairs = {(a, b) for a in group for b in group}
        return not self._silent.intersection(group) and not pairs & self._gaps

    def _all_left(self) -> bool:
        if self._foreign and self._coordinator.has_unheard_rejections:
            return False
        members = self._coordinator.membership.ranks
        return all(
            self._coordinator.has_left(member) for rank, member in members.items() if rank not in self._silent
        )


def _joined(group: Group, silent: Group, shares: Sequence[Share]) -> Measurement:
    """Combine the results of a group's members into one measurement."""
    problems = [share.problem for share in shares if share.problem]
    if silent:
        problems.append(Phrase("no answer of {nodes}", nodes=describe_nodes(silent)))
    if problems:
        wrong = any(share.wrong for share in shares)
        return Measurement(group, problem=problems[0], wrong=wrong, silent=silent)
    return Measurement(
        group,
        latency_us=max(share.latency_us for share in shares),
        bandwidth_gbps=min(share.bandwidth_gbps for share in shares),
    )
