"""One node's part in the cluster check; its argument is a DoctorTask, and it prints a PartAnswer.

It is a separate process, so that anything that hangs in it can be killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from threading import Thread
from typing import NoReturn, TypeVar

from platform_launch.doctor.cluster.director import (
    CONNECT_LIMIT_S,
    MARGIN_S,
    Director,
    connect_limit_s,
    longest_s,
)
from platform_launch.doctor.cluster.document import (
    PURPOSE,
    DoctorState,
    DoctorTask,
    Document,
    Endpoint,
    Gap,
    GroupAddress,
    PartAnswer,
    ReachReport,
)
from platform_launch.doctor.cluster.judge import way
from platform_launch.doctor.cluster.measure import CollectiveWorkers, free_address
from platform_launch.doctor.cluster.pairing import Group
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError
from platform_launch.helper import MessageOutlet
from platform_launch.rendezvous.authentication import Secret, read_secret
from platform_launch.rendezvous.connecting import Connector, JoinTarget, NeverReachedError, RejectedError
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.large_packets import lost_above
from platform_launch.rendezvous.listening import PortInUseError, listen
from platform_launch.rendezvous.loop import ConnectionLostError
from platform_launch.rendezvous.messages import ConsoleLine, decode, encode
from platform_launch.rendezvous.participant import CoordinatorReplacedError, Participant
from platform_launch.rendezvous.ranks import describe_nodes, ranges
from platform_launch.rendezvous.reach import ReachStep, open_port, reach, reach_addresses
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.text import Phrase

T = TypeVar("T")

_LOOK_S = 0.5
_HEARTBEAT_S = 0.2
_SILENT_S = 30.0
_LOST = Phrase("check this node's network, and the output of node 0")


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the part, and print its answer to stdout; what libraries print goes to stderr."""
    outlet = MessageOutlet()
    part = Part(decode(arguments[0].encode(), DoctorTask), lambda line: outlet.send(encode(line)))
    answers: list[PartAnswer] = []
    thread = Thread(target=lambda: answers.append(part.run()), name="part", daemon=True)
    thread.start()
    launcher, deadline = os.getppid(), time.monotonic() + longest_s(part.task)
    while thread.is_alive() and time.monotonic() < deadline and os.getppid() == launcher:
        thread.join(_LOOK_S)
    if not answers:  # cut off: only the end of the process helps
        answers.append(PartAnswer(failure=_gone(part.stage), hint=_LOST))
    outlet.send(encode(answers[0]))
    os._exit(0)


class Part:
    """This node's part, stage by stage; ``stage`` is the current one, ``log`` prints lines for the user."""

    def __init__(self, task: DoctorTask, log: Callable[[ConsoleLine], None]) -> None:
        self.task = task
        self._log = log
        self.stage = Phrase("before the nodes connected")
        self._port = 0

    def run(self) -> PartAnswer:
        """Return the result."""
        failure = hint = ""
        try:
            return PartAnswer(self._run_as(read_secret(Environment.of_this_process())))
        except (ConnectionLostError, CoordinatorReplacedError):
            failure, hint = _gone(self.stage), _LOST
        except LaunchError as error:
            failure, hint = error.message, error.hint
        except RejectedError as error:
            refused = launch_error(error.rejection)
            failure, hint = refused.message, refused.hint
        except NeverReachedError as error:
            failure = error.message
        except OSError as error:
            failure = str(error)
        return PartAnswer(failure=failure, hint=hint)

    def _run_as(self, secret: Secret | None) -> Document:
        with CollectiveWorkers(self.task) as self._workers:
            return self._run_stages(secret)

    def _run_stages(self, secret: Secret | None) -> Document:
        task = self.task
        with ExitStack() as open_ports:
            own_port = open_ports.enter_context(open_port())
            me = self._me()
            director = None
            if task.node_rank == 0:
                with suppress(OSError):  # in use: a finding of node 0 alone, which names the owner
                    open_ports.enter_context(open_port(task.master_port))
                director = self._direct(me, secret)
            endpoint = Endpoint(task.host, task.address, own_port, task.mtu, task.network)
            self._participant = self._join(me, secret, endpoint)
            self.stage = Phrase("while the other nodes connect")
            state = self._await(lambda s: s.endpoints is not None, task.join_limit_s + MARGIN_S)
            self._workers.start()
            self.stage = Phrase("while the nodes connect to each other")
            self._participant.publish(self._during(lambda: self._reach(state.endpoints or {})))
            limit_s = connect_limit_s(task.nnodes) + 2 * MARGIN_S
            state = self._await(lambda s: s.round >= 0 or s.document is not None, limit_s)
        while state.document is None:
            state = self._measure(state)
        self._participant.leave()
        if director is not None:
            director.join(MARGIN_S)
        return state.document

    def _me(self) -> Fingerprint:
        task = self.task
        identity = os.urandom(16).hex()
        return Fingerprint(task.node_rank, task.nnodes, task.host, (task.address,), identity, task.job_id)

    def _direct(self, me: Fingerprint, secret: Secret | None) -> Thread:
        """Open the rendezvous and direct it, in a thread."""
        task = self.task
        try:
            listener = listen(task.rendezvous_ports, task.nnodes)
            self._port = int(listener.getsockname()[1])
            coordinator = Coordinator([listener], me, purpose=PURPOSE, log=self._log, secret=secret)
        except PortInUseError as error:
            raise LaunchError(error.args[0], error.hint) from error
        thread = Thread(target=Director(coordinator, task, self._log).lead, name="director", daemon=True)
        thread.start()
        return thread

    def _join(self, me: Fingerprint, secret: Secret | None, endpoint: Endpoint) -> Participant:
        task = self.task
        host, ports = task.master_addr, task.rendezvous_ports
        if task.node_rank == 0:
            host, ports = "127.0.0.1", (self._port,)
        return Connector(
            JoinTarget(host, ports, PURPOSE, me, secret, details=endpoint),
            timeout_s=task.join_limit_s,
            pause=time.sleep,
            log=self._log,
        ).join()

    def _await(self, done: Callable[[DoctorState], bool], limit_s: float) -> DoctorState:
        """Stay connected until node 0 publishes the next stage; a node with a doubtful rank keeps waiting."""
        deadline = time.monotonic() + limit_s
        while True:
            self._step()
            state = self._participant.state(DoctorState)
            if self._participant.membership is not None and state is not None and done(state):
                return state
            if time.monotonic() > deadline:
                raise LaunchError(
                    Phrase(
                        "node 0 did not answer within {limit:.0f} s, {stage}", limit=limit_s, stage=self.stage
                    )
                )
            time.sleep(_HEARTBEAT_S)

    def _step(self) -> None:
        self._participant.step()
        if self._participant.coordinator_silent_s >= _SILENT_S:
            raise ConnectionLostError

    def _during(self, work: Callable[[], T]) -> T:
        """Run something that takes a while, and send heartbeats meanwhile."""
        results: list[T] = []
        thread = Thread(target=lambda: results.append(work()), name="work", daemon=True)
        thread.start()
        while thread.is_alive():
            self._step()
            thread.join(_HEARTBEAT_S)
        if not results:
            raise LaunchError(
                Phrase("a bug in the doctor, {stage}; its traceback is above", stage=self.stage)
            )
        return results[0]

    def _reach(self, endpoints: dict[int, Endpoint] | object) -> ReachReport:
        """Connect to every other node on its port, and to node 0 on MASTER_PORT too."""
        task = self.task
        assert isinstance(endpoints, dict)
        # Each begins with the next node, so that a thousand do not connect to the same ones at once.
        others = sorted(endpoints.keys() - {task.node_rank}, key=lambda r: (r - task.node_rank) % task.nnodes)
        places = {rank: (endpoints[rank].address, endpoints[rank].port) for rank in others}
        found = reach_addresses(places, CONNECT_LIMIT_S)
        lost = lost_above({rank: places[rank] for rank, r in found.items() if r.step is ReachStep.OPEN})
        master = reach(task.master_addr, task.master_port, CONNECT_LIMIT_S)
        alike: dict[tuple[ReachStep, int], list[int]] = {}
        for rank, result in found.items():
            if result.step is not ReachStep.OPEN or rank in lost:
                alike.setdefault((result.step, lost.get(rank, 0)), []).append(rank)
        return ReachReport(
            tuple(
                Gap(_problem(step, lost_bytes), ranges(ranks), bool(lost_bytes))
                for (step, lost_bytes), ranks in alike.items()
            ),
            ""
            if master.step is ReachStep.OPEN
            else way(master.address or task.master_addr, task.master_port, _problem(master.step)),
            master.step in (ReachStep.NAME, ReachStep.NO_NAME_SERVER),
        )

    def _measure(self, state: DoctorState) -> DoctorState:
        """Run a round, and return the state that follows it."""
        for group in state.groups:
            if self.task.node_rank in group:
                self.stage = Phrase("in a collective of {nodes}", nodes=describe_nodes(group))
                address = self._agree_on_address(state.round, group)
                number = state.round
                self._participant.publish(
                    self._during(lambda: self._workers.run_round(number, group, address))  # noqa: B023
                )
        limit_s = self.task.collective_limit_s + 2 * MARGIN_S
        return self._await(lambda s: s.round > state.round or s.document is not None, limit_s)

    def _agree_on_address(self, number: int, group: Group) -> str:
        """Agree on a group's address: a port that is free on its first node."""
        if self.task.node_rank == group[0]:
            address = free_address(self.task.address)
            self._participant.publish(GroupAddress(number, address))
            return address
        deadline = time.monotonic() + self.task.collective_limit_s
        while time.monotonic() < deadline:
            self._step()
            found = self._participant.value_of(group[0], GroupAddress)
            if found is not None and found.round == number:
                return found.address
            time.sleep(_HEARTBEAT_S)
        raise LaunchError(Phrase("node {rank} did not report the address of its group", rank=group[0]))


def _gone(stage: str) -> Phrase:
    return Phrase("node 0 does not answer any more, {stage}", stage=stage)


def _problem(step: ReachStep, lost_bytes: int = 0) -> Phrase:
    if lost_bytes:
        return Phrase("packets of {size} bytes are lost, small ones arrive", size=lost_bytes)
    return Phrase(step.value)
