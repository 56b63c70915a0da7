"""Rank 0's side of a waiting cluster: which nodes joined, returned or went silent. It never closes."""

from __future__ import annotations

import time
from collections.abc import Callable

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.dist_launch.roster import NodeReadiness, WaitRoster
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.membership import ChangeKind
from platform_launch.text import Phrase

_SILENT_S = 12.0


class ClusterFormation:
    """Call :meth:`step` often. ``print_line(level, text)`` prints lines for the user.

    ``roster`` is the last one that was published. ``me`` is rank 0 itself, which nobody else can be.
    """

    def __init__(
        self, coordinator: Coordinator, me: ClusterMember, nnodes: int, print_line: Callable[[str, str], None]
    ) -> None:
        self._coordinator = coordinator
        self._me = me
        self._nnodes = nnodes
        self._print_line = print_line
        self._formed_at = time.strftime("%Y-%m-%d %H:%M:%S")
        self._silent: set[int] = set()
        self._problems: dict[int, str] = {}
        self._all_ready_in = -1
        self.own_readiness = NodeReadiness(-1)
        self.roster = WaitRoster(-1, self._formed_at, (), ())
        self._publish()

    def step(self) -> None:
        """Handle nodes that joined or left, and receive the readiness of the nodes."""
        changes = self._coordinator.step()
        for change in changes:
            if change.kind is ChangeKind.REPLACED:
                member = change.member
                self._print_line(
                    "INFO",
                    Phrase("node {rank} is back, restarted on {place}", rank=member.rank, place=member.place),
                )
        departed = self._forget_who_left()
        if departed or any(change.kind is not ChangeKind.REJECTED for change in changes):
            self._publish()
        if self.roster.members:
            self._watch_silence()
            self._await_readiness()

    def _forget_who_left(self) -> bool:
        """Until all nodes have joined, treat a node that left as one that has not joined."""
        if self.roster.members:
            return False
        ranks = self._coordinator.membership.ranks
        left = [m for rank, m in ranks.items() if rank and self._coordinator.has_left(m)]
        for member in left:
            self._coordinator.remove(member)
        return bool(left)

    def _publish(self) -> None:
        present: dict[int, ClusterMember] = {0: self._me}
        for rank, member in list(self._coordinator.membership.ranks.items()):
            if rank == 0:
                continue
            details = member.details
            if isinstance(details, ClusterMember) and details.rank == rank:
                present[rank] = details
            else:
                self._print_line(
                    "WARN",
                    Phrase(
                        "rejected: {place} joined as node {rank} without its SSH details",
                        place=member.place,
                        rank=rank,
                    ),
                )
                self._coordinator.remove(member)
        absent = tuple(rank for rank in range(self._nnodes) if rank not in present)
        members = () if absent else tuple(present[rank] for rank in range(self._nnodes))
        self.roster = WaitRoster(self.roster.edition + 1, self._formed_at, absent, members)
        self._coordinator.publish(self.roster)

    def _watch_silence(self) -> None:
        for rank, member in self._coordinator.membership.ranks.items():
            silent_s = self._coordinator.silent_s(member)
            if silent_s >= _SILENT_S and rank not in self._silent:
                self._silent.add(rank)
                left = self._coordinator.has_left(member)
                how = (
                    Phrase("left") if left else Phrase("has been silent for {silent:.0f} s", silent=silent_s)
                )
                self._print_line(
                    "WARN", Phrase("node {rank} on {place} {how}", rank=rank, place=member.place, how=how)
                )
            elif silent_s == 0.0 and rank in self._silent:
                self._silent.remove(rank)
                self._print_line(
                    "INFO", Phrase("node {rank} on {place} responds again", rank=rank, place=member.place)
                )

    def _await_readiness(self) -> None:
        """Report once per roster whether all nodes can be reached, and why some cannot."""
        edition = self.roster.edition
        if self.all_are_ready:
            return
        ready = 0
        for node in self.roster.members:
            readiness = self._readiness_of(node.rank)
            if readiness is None or readiness.edition != edition:
                continue
            ready += not readiness.problem
            if readiness.problem != self._problems.get(node.rank, ""):
                self._problems[node.rank] = readiness.problem
                if readiness.problem and node.rank != 0:  # which reported it itself
                    self._print_line(
                        "ERROR", Phrase("{place}: {problem}", place=node.place, problem=readiness.problem)
                    )
        if ready == self._nnodes:
            self._all_ready_in = edition
            self._print_line(
                "SUCCESS",
                Phrase("all {nodes} nodes wait: dist-launch run SCRIPT starts it on all", nodes=self._nnodes),
            )

    @property
    def all_are_ready(self) -> bool:
        """True once every node has reported for the newest roster that it can be reached."""
        return self._all_ready_in == self.roster.edition

    def others_have_answered(self) -> bool:
        """True once each other node has answered for the newest roster, with or without a problem."""
        edition = self.roster.edition
        answers = [self._readiness_of(node.rank) for node in self.roster.members if node.rank]
        return all(answer is not None and answer.edition == edition for answer in answers)

    def _readiness_of(self, rank: int) -> NodeReadiness | None:
        if rank == 0:
            return self.own_readiness
        member = self._coordinator.membership.ranks.get(rank)
        return self._coordinator.value_of(member, NodeReadiness) if member is not None else None
