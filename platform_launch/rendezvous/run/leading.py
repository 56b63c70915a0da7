"""Node 0's side of a run: opens the rendezvous, checks its own address, leads from gathering to outcome."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event, Thread

from platform_launch.errors import NodesAbsentError, TopologyError
from platform_launch.rendezvous import listening
from platform_launch.rendezvous.connecting import Connector, JoinTarget
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.listening import port_problem
from platform_launch.rendezvous.messages import ConsoleLine
from platform_launch.rendezvous.reach import ReachStep, is_local_address, open_port, resolve
from platform_launch.rendezvous.run.gathering import CORRECT_MASTER_ADDR, Gathering
from platform_launch.rendezvous.run.hosts import must_yield
from platform_launch.rendezvous.run.run_monitor import RunMonitor
from platform_launch.rendezvous.run.silence import silent_after_s
from platform_launch.rendezvous.run.state import PURPOSE, RunPhase, RunState
from platform_launch.rendezvous.run.task import RunTask, fault
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase, joined

# A step over a thousand nodes takes 10 ms.
_QUICKEST_STEP_S = 0.05
_SLOWEST_STEP_S = 0.25
# How long node 0 waits for an address of another machine to become its own. A name may resolve to this
# machine later, once a name server's cache has expired: node 0 waits for that as for absent nodes.
_WRONG_ADDRESS_S = 20.0
# A service's address reaches this machine a moment after it is ready.
_LOG_FIRST_S = 2.0
_LOG_EVERY_S = 5.0
_RESOLVE_EVERY_S = 1.0
_SEARCH_EVERY_S = 2.0


class Lead:
    """Leads a run in a thread of its own. ``closing`` asks it to end while others still run.

    ``port`` is that of the rendezvous, once it is open; ``moved_to`` is the host where it is instead.
    ``log`` receives lines for the user.
    """

    def __init__(self, task: RunTask, me: Fingerprint, log: Callable[[ConsoleLine], None]) -> None:
        self._task = task
        self._me = me
        self._log = log
        self._refusals: deque[RunRefusal] = deque()
        self._must_move = Event()
        self.moved_to = ""
        self._master_port = ExitStack()
        self.port = 0
        self._hurried = False
        self._step_s = min(_QUICKEST_STEP_S + me.nnodes / 4000, _SLOWEST_STEP_S)
        self.closing = Event()
        self._thread = Thread(target=self._run_or_close, name="lead", daemon=True)

    def open(self) -> None:
        """Open the rendezvous and start. Raises PortInUseError and InstallationError."""
        task = self._task
        self._open_master_port()  # first: nodes that find the rendezvous try MASTER_PORT next
        listener = listening.listen(task.ports, self._me.nnodes + task.spares)
        self.port = int(listener.getsockname()[1])
        if self.port != task.ports[0]:
            text = Phrase(
                "port {taken} for the roll call {why}; the nodes connect on port {port} instead",
                taken=task.ports[0],
                why=port_problem(task.ports[0]),
                port=self.port,
            )
            self._log(ConsoleLine("WARN", text, "rendezvous-elsewhere"))
        self._coordinator = Coordinator(
            [listener], self._me, purpose=PURPOSE, log=self._log, secret=task.secret, mark=task.mark
        )
        self._gathering = Gathering(
            self._coordinator,
            self._me,
            timeout_s=task.roll_call_timeout_s,
            node_timeout_s=silent_after_s(task.node_timeout_s),
            log=self._log,
            replaced=task.replaced,
            spares=task.spares,
            min_nodes=task.min_nodes,
            trained=task.trained,
            by_network=task.by_network,
        )
        self._thread.start()

    def refuse(self, exit_code: int, reason: str, hint: str = "") -> None:
        """Refuse the job while nodes gather; from any thread."""
        self._refusals.append(RunRefusal(exit_code, reason, hint))

    def give_up(self, exit_code: int, reason: str) -> None:
        """Refuse the job for the nodes that have joined, and wait for no others."""
        self._hurried = True
        self.refuse(exit_code, reason)

    def move(self, host: str = "") -> None:
        """Send the nodes that gather here to another host; from any thread."""
        self.moved_to = host
        self._hurried = True
        self._must_move.set()

    def leave(self) -> None:
        """Wait until every node has read the outcome or is gone, and close the rendezvous."""
        if self._thread.ident is not None:  # not started if the port was taken
            self._thread.join(silent_after_s(self._task.node_timeout_s))
            self._coordinator.close()

    def _run_or_close(self) -> None:
        """Lead; after a fault, close the rendezvous, which the other nodes notice."""
        try:
            self._run()
        except BaseException as error:
            self._log(fault(error))
            self._coordinator.close()
        finally:
            self._master_port.close()

    def _run(self) -> None:
        Thread(target=self._check_master_address, name="master-address", daemon=True).start()
        if self._task.rendezvous_hosts.own is not None:
            Thread(target=self._search_elsewhere, name="elsewhere", daemon=True).start()
        while self._gathering.step().phase is RunPhase.WAITING:
            if self._must_move.is_set():
                self._gathering.move()
            while self._refusals:
                self._gathering.refuse(self._refusals.popleft())
            self._coordinator.happened.wait(self._step_s)
        self._master_port.close()
        if self._gathering.state.phase is RunPhase.RUNNING:
            self._watch_over_run()
        else:
            while not self._gathering.all_left(hurried=self._hurried):
                self._coordinator.happened.wait(self._step_s)

    def _open_master_port(self) -> None:
        """Keep MASTER_PORT open while nodes gather, so that they can check it: the job needs it later."""
        port = self._task.master_port
        try:
            self._master_port.enter_context(open_port(port))
        except OSError:
            reason = Phrase(
                "MASTER_PORT {port} on node 0, {place}, {why}",
                port=port,
                place=self._me.place,
                why=port_problem(port),
            )
            self.refuse(NodesAbsentError.exit_code, reason, "end that process, or pass another --master-port")

    def _watch_over_run(self) -> None:
        """Lead until all nodes have read the outcome."""
        state = self._gathering.state
        monitor = RunMonitor(
            self._coordinator,
            state,
            node_timeout_s=self._task.node_timeout_s,
            grace_s=self._task.grace_s,
            spares=self._task.spares + self._me.nnodes - state.nnodes,
            min_nodes=self._task.min_nodes,
            log=self._log,
            may_move=bool(self._task.rendezvous_hosts.hosts)
            and state.restarts_used < self._task.max_restarts,
        )
        while monitor.outcome is None or not monitor.all_left:
            monitor.step()
            if self.closing.is_set():
                monitor.close()
            # For days nothing happens, and each step takes some processor time from node 0's processes.
            quiet = monitor.state.ending is None and monitor.outcome is None
            self._coordinator.happened.wait(_SLOWEST_STEP_S if quiet else self._step_s)

    def _search_elsewhere(self) -> None:
        """Give up this place for another one where the nodes already run, or which takes precedence."""
        known = self._task.rendezvous_hosts
        while self._gathering.state.phase is RunPhase.WAITING and known.own is not None:
            for index, host in enumerate(known.hosts):
                if index == known.own:
                    continue
                state = self._state_at(host)
                restarts = self._gathering.restarts_used
                if state is not None and must_yield(known.own, index, state, restarts):
                    self.move(host)
                    return
            time.sleep(_SEARCH_EVERY_S)

    def _connector(self, host: str, ports: tuple[int, ...]) -> Connector:
        task = self._task
        target = JoinTarget(host, ports, PURPOSE, self._me, task.secret, mark=task.mark)
        return Connector(target, timeout_s=0.0, pause=time.sleep, log=self._log)

    def local_job(self) -> str | None:
        """Return the job whose rendezvous is on this host now, and announce this one to it."""
        found = self._connector("127.0.0.1", self._task.ports).probe()
        if found is None:
            return None
        found.peek(RunState)
        return found.welcome.job

    def _state_at(self, host: str) -> RunState | None:
        """Return the state of this job's rendezvous on another host; None if there is none."""
        found = self._connector(host, self._task.ports).probe()
        return found.peek(RunState) if found is not None else None

    def _check_master_address(self) -> None:
        """Report if MASTER_ADDR is not this machine, because others then look for node 0 elsewhere."""
        began = time.monotonic()
        report_at = began + _LOG_FIRST_S
        while self._gathering.state.phase is RunPhase.WAITING:
            problem, certain = self._master_address_problem()
            self._gathering.master_addr_problem = problem
            if not problem:
                return
            now = time.monotonic()
            if certain and now - began > _WRONG_ADDRESS_S and len(self._gathering.present) <= 1:
                self.refuse(TopologyError.exit_code, problem, CORRECT_MASTER_ADDR)
                return
            if now >= report_at:
                report_at = now + _LOG_EVERY_S
                self._log(ConsoleLine("WARN", problem, "master-addr-elsewhere"))
            time.sleep(_RESOLVE_EVERY_S)

    def _master_address_problem(self) -> tuple[str, bool]:
        """Return what is wrong with MASTER_ADDR, if anything, and whether it cannot change."""
        name = self._task.master_addr
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
        if any(is_local_address(family, address) for family, address in found):
            return "", False
        if self._leads_here(name):  # a service's address is on no interface, but reaches this machine
            return "", False
        addresses = joined(address for _, address in found)
        problem = Phrase(
            "MASTER_ADDR={name!r} is {addresses}, which is not this machine, {place}, although it is node 0: "
            "others look for node 0 there",
            name=name,
            addresses=addresses,
            place=self._me.place,
        )
        return problem, any(address == name for _, address in found)

    def _leads_here(self, host: str) -> bool:
        found = self._connector(host, (self.port,)).probe()
        return found is not None and found.welcome.round == self._coordinator.welcome.round
