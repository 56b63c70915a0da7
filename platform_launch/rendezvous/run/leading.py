"""Node 0's side of the helper: serves the store, checks itself, leads from gathering to settlement."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Event, Thread

from platform_launch.errors import NodesAbsentError, TopologyError
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.connecting import CONNECT_LIMIT_S, Connector, JoinTarget
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.handshake import RejectedError
from platform_launch.rendezvous.messages import ConsoleLine, Message
from platform_launch.rendezvous.port_discovery import announce_port
from platform_launch.rendezvous.reach import ReachStep, is_here, reach, resolve
from platform_launch.rendezvous.run.gathering import CORRECT_MASTER_ADDR, Gathering
from platform_launch.rendezvous.run.launcher import RunSoFar, RunTask, fault
from platform_launch.rendezvous.run.places import must_yield
from platform_launch.rendezvous.run.settlement import Settlement
from platform_launch.rendezvous.run.silence import silent_after_s
from platform_launch.rendezvous.run.state import (
    PURPOSE,
    LauncherSilence,
    RunPhase,
    RunState,
    StopAll,
    TrainingEnded,
)
from platform_launch.rendezvous.store import PortTakenError, Store, StoreError, why_taken
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase

# A look at a thousand nodes takes a hundredth of a second.
_QUICKEST_STEP_S = 0.05
_SLOWEST_STEP_S = 0.25
_STORE_LIMIT_S = 60.0
# How long a master address that is not this machine's is borne before the job is refused.
_WRONG_MASTER_S = 20.0
# The address of a service leads here a moment after this machine is ready.
_SAY_FIRST_S = 2.0
_SAY_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0
_LOOK_ELSEWHERE_EVERY_S = 2.0


class Lead:
    """Leads a run in a thread of its own. ``closing`` asks it to end while others still train.

    ``port`` is where the nodes meet, once it is open; ``moved_to`` is the host where they meet instead.

    ``emit`` takes lines for the user, and what another helper needs to go on in the place of this one.
    """

    def __init__(
        self, task: RunTask, me: Fingerprint, secret: Secret | None, emit: Callable[[Message], None]
    ) -> None:
        self._task = task
        self._me = me
        self._secret = secret
        self._say = self._emit = emit
        self._refusals: deque[RunRefusal] = deque()
        self._must_move = Event()
        self.moved_to = ""
        self._master_port = ExitStack()
        self.port = 0
        self._hurried = False
        self._step_s = min(_QUICKEST_STEP_S + me.nnodes / 4000, _SLOWEST_STEP_S)
        self.closing = Event()
        self._thread = Thread(target=self._lead_or_die, name="lead", daemon=True)

    def open(self) -> None:
        """Serve the store and start. Raises PortTakenError."""
        so_far = self._task.so_far
        # First, since whoever finds the store looks for MASTER_PORT next.
        announced = so_far is None and self._open_master_port()
        store = self._serve(elsewhere=announced)
        self.port = store.port
        self._coordinator = Coordinator(
            store,
            self._me,
            purpose=PURPOSE,
            say=self._say,
            secret=self._secret,
            spares=self._task.spares,
            values=(StopAll, TrainingEnded, LauncherSilence),
            round_of=so_far.round if so_far is not None else "",
            members=so_far.members if so_far is not None else (),
            job=self._task.places.mark,
        )
        if so_far is not None:
            self._coordinator.publish(so_far.state)
            self._thread.start()
            return
        self._gathering = Gathering(
            self._coordinator,
            self._me,
            timeout_s=self._task.roll_call_timeout_s,
            node_timeout_s=silent_after_s(self._task.node_timeout_s),
            say=self._say,
            replaced=self._task.replaced,
            spares=self._task.spares,
        )
        self._thread.start()

    def refuse(self, exit_code: int, reason: str, hint: str = "") -> None:
        """Send everyone home while they gather; from any thread."""
        self._refusals.append(RunRefusal(exit_code, reason, hint))

    def give_up(self, exit_code: int, reason: str) -> None:
        """Send home who has come, and wait for nobody else."""
        self._hurried = True
        self.refuse(exit_code, reason)

    def move(self, host: str = "") -> None:
        """Let those who gather here meet elsewhere; from any thread."""
        self.moved_to = host
        self._hurried = True
        self._must_move.set()

    def leave(self) -> None:
        """Wait until every node has read how it ended, or is gone."""
        if self._thread.ident is not None:  # not started where the port was taken
            self._thread.join(silent_after_s(self._task.node_timeout_s))

    def _lead_or_die(self) -> None:
        """Without node 0 the others would wait for ever: a fault here ends the process, which they notice."""
        try:
            self._lead()
        except BaseException as error:
            self._say(fault(error))
            os._exit(1)

    def _lead(self) -> None:
        so_far = self._task.so_far
        if so_far is not None:
            self._watch_over_run(so_far.state, so_far.clock_offsets_s)
            return
        Thread(target=self._check_master_address, name="master-address", daemon=True).start()
        if self._task.places.own is not None:
            Thread(target=self._look_elsewhere, name="elsewhere", daemon=True).start()
        while self._gathering.step().phase is RunPhase.WAITING:
            if self._must_move.is_set():
                self._gathering.move()
            while self._refusals:
                self._gathering.refuse(self._refusals.popleft())
            time.sleep(self._step_s)
        self._master_port.close()
        if self._gathering.state.phase is RunPhase.RUNNING:
            self._watch_over_run(self._gathering.state, self._gathering.clock_offsets_s)
        else:
            while not self._gathering.all_left(hurried=self._hurried):
                time.sleep(self._step_s)

    def _serve(self, *, elsewhere: bool) -> Store:
        """Serve the store, on another port where that one is taken. Raises PortTakenError."""
        try:
            return Store.serve(self._task.rendezvous_port, limit_s=_STORE_LIMIT_S)
        except PortTakenError as error:
            if not elsewhere:
                raise
            store = Store.serve(0, limit_s=_STORE_LIMIT_S)
            text = Phrase(
                "{problem}; the nodes meet on port {port} instead",
                problem=error.args[0],
                port=store.port,
            )
            self._say(ConsoleLine("WARN", text, "rendezvous-elsewhere"))
            return store

    def _open_master_port(self) -> bool:
        """Let other nodes find MASTER_PORT open while they gather: the training will need it.

        Tell whether that can be done.
        """
        port = self._task.master_port
        try:
            self._master_port.enter_context(announce_port(port, lambda: self.port))
        except OSError:
            reason = Phrase(
                "MASTER_PORT {port} on node 0, {place}, {why}",
                port=port,
                place=self._me.place,
                why=why_taken(port),
            )
            self.refuse(NodesAbsentError.exit_code, reason, "end that process, or pass another --master-port")
            return False
        return True

    def _watch_over_run(self, state: RunState, clock_offsets_s: Mapping[int, float]) -> None:
        """Lead until all have read how the run ended."""
        settlement = Settlement(
            self._coordinator,
            state,
            clock_offsets_s=clock_offsets_s,
            node_timeout_s=self._task.node_timeout_s,
            grace_s=self._task.grace_s,
            spares=self._task.spares,
            say=self._say,
            may_move=bool(self._task.places.hosts) and state.restarts_used < self._task.max_restarts,
        )
        known: RunSoFar | None = None
        while settlement.outcome is None or not settlement.all_left:
            so_far = RunSoFar(
                self._coordinator.announcement.round,
                settlement.state,
                self._coordinator.members,
                clock_offsets_s,
            )
            if so_far != known:
                known = so_far
                self._emit(so_far)
            settlement.step()
            if self.closing.is_set():
                settlement.close()
            # For days nothing happens, and each look costs the training of node 0 a little.
            quiet = settlement.state.ending is None and settlement.outcome is None
            time.sleep(_SLOWEST_STEP_S if quiet else self._step_s)

    def _look_elsewhere(self) -> None:
        """Give up this place for another one where the nodes train by now, or which comes first."""
        places, task = self._task.places, self._task
        while self._gathering.state.phase is RunPhase.WAITING and places.own is not None:
            for index, host in enumerate(places.hosts):
                if index == places.own:
                    continue
                state = self._state_at(
                    JoinTarget(host, task.rendezvous_port, PURPOSE, self._me, self._secret)
                )
                restarts = self._gathering.restarts_used
                if state is not None and must_yield(places.own, index, state, restarts):
                    self.move(host)
                    return
            time.sleep(_LOOK_ELSEWHERE_EVERY_S)

    def _state_at(self, target: JoinTarget) -> RunState | None:
        """Return what the rendezvous of this job at another place says; None where there is none."""
        target = replace(target, discovery_port=self._task.master_port)
        connector = Connector(
            target, timeout_s=0.0, answer_limit_s=CONNECT_LIMIT_S, pause=time.sleep, say=self._say
        )
        with suppress(RejectedError, StoreError):
            found, _ = connector.find()
            if found is not None:
                try:
                    if found.announcement.job == self._coordinator.announcement.job:
                        return found.peek(RunState)
                finally:
                    found.close()
        return None

    def _check_master_address(self) -> None:
        """Say it when MASTER_ADDR is not this machine: then the others look for node 0 elsewhere."""
        began = time.monotonic()
        say_at = began + _SAY_FIRST_S
        while self._gathering.state.phase is RunPhase.WAITING:
            problem, certain = self._master_address_problem()
            self._gathering.master_addr_problem = problem
            if not problem:
                return
            now = time.monotonic()
            if certain and now - began > _WRONG_MASTER_S and len(self._gathering.present) <= 1:
                self.refuse(TopologyError.exit_code, problem, CORRECT_MASTER_ADDR)
                return
            if now >= say_at:
                say_at = now + _SAY_EVERY_S
                self._say(ConsoleLine("WARN", problem, "master-addr-elsewhere"))
            time.sleep(_LOOK_EVERY_S)

    def _master_address_problem(self) -> tuple[str, bool]:
        """Return what is wrong with MASTER_ADDR, if anything, and whether it is certainly wrong."""
        name, port = self._task.master_addr, self.port
        names = resolve(name, limit_s=15.0)
        found = names.found
        if names.step is ReachStep.NO_NAME_SERVER:
            return (
                Phrase("no name server has answered what the address of MASTER_ADDR={name!r} is", name=name),
                False,
            )
        if not found:
            return (
                Phrase(
                    "MASTER_ADDR={name!r} does not resolve on node 0, so that others may not find it either",
                    name=name,
                ),
                False,
            )
        if any(is_here(family, address) for family, address in found):
            return "", False
        if self._leads_here(name, port):  # the address of a service is on no interface, and yet leads here
            return "", False
        addresses = ", ".join(address for _, address in found)
        problem = Phrase(
            "MASTER_ADDR={name!r} is {addresses}, which is not this machine, {place}, although it is node 0: "
            "others look for node 0 there",
            name=name,
            addresses=addresses,
            place=self._me.place,
        )
        return problem, True

    def _leads_here(self, host: str, port: int) -> bool:
        target = JoinTarget(host, port, PURPOSE, self._me, self._secret)
        connector = Connector(
            target, timeout_s=0.0, answer_limit_s=CONNECT_LIMIT_S, pause=time.sleep, say=self._say
        )
        with suppress(RejectedError):
            found, _ = connector.enter(reach(host, port, CONNECT_LIMIT_S))
            if found is not None:
                found.close()
                return found.announcement == self._coordinator.announcement
        return False
