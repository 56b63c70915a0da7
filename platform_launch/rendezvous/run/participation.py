"""One node's part in a run, from the first try to reach node 0 to the outcome of the job.

It runs in one thread of the launcher, and its connections in another (``loop``). The launcher sends commands
and receives news: lines for the user, what the nodes agreed on, how the run ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Queue
from threading import RLock, Thread

from platform_launch.errors import LaunchError, NodesAbsentError
from platform_launch.rendezvous.connecting import Connector, NeverReachedError, RejectedError
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, describe_ending
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.listening import PortInUseError
from platform_launch.rendezvous.loop import ConnectionLostError
from platform_launch.rendezvous.participant import CoordinatorReplacedError, Participant
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.run.arriving import (
    Arrival,
    Command,
    LostError,
    NoRankError,
    Wake,
    WithdrawnError,
)
from platform_launch.rendezvous.run.member import RunMembership
from platform_launch.rendezvous.run.silence import SILENT_S
from platform_launch.rendezvous.run.state import RunPhase, RunState, StopAll, TrainingEnded
from platform_launch.rendezvous.run.task import OwnProcesses, RendezvousLost, RunNews, RunTask, fault
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase

_WHERE_ELSE = "end that run, or give this one another MASTER_ADDR, MASTER_PORT or rank"
# How long node 0 waits until the others have read the outcome, and a little more.
_END_S = SILENT_S + 5.0
# How long a node that cannot start tries to report it to node 0.
_REFUSE_LIMIT_S, _REFUSE_PAUSE_S = 10.0, 0.1


class Participation:
    """Calls ``receive(news)`` from threads of the rendezvous, one at a time; None comes last."""

    def __init__(self, task: RunTask, own: OwnProcesses, receive: Callable[[RunNews | None], None]) -> None:
        self._task = task
        self._own = own
        self._receive = receive
        self._lock = RLock()
        self._commands: Queue[Command | Wake] = Queue()
        self._arrival = Arrival(task, self._commands, self._emit)
        self._membership: RunMembership | None = None
        self._thread = Thread(target=self._run_to_the_end, name="rendezvous", daemon=True)

    def start(self) -> None:
        """Begin. Raises RuntimeError if no thread can be started."""
        self._thread.start()

    def send(self, command: Command) -> None:
        """Queue a command, from any thread. It has no effect once the run is over."""
        self._commands.put(command)

    def close(self) -> None:
        """Leave the rendezvous, and wait until the others know."""
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(_END_S)

    def _emit(self, news: RunNews | None) -> None:
        with self._lock:
            self._receive(news)

    def _run_to_the_end(self) -> None:
        try:
            self._run()
        except LaunchError as error:
            self._emit(RunRefusal(error.exit_code, error.message, error.hint))
        except Exception as error:  # the launcher reports the consequence
            self._emit(fault(error))
        finally:
            lead = self._arrival.lead
            if lead is not None:
                lead.leave()
            self._emit(None)

    def _run(self) -> None:
        """Arrive, stay, leave."""
        try:
            arrived = self._arrival.run()
            if arrived is not None:
                self._membership = RunMembership(
                    self._task, arrived, self._arrival.lead, self._own, self._commands, self._emit
                )
                self._membership.run()
            self._leave()
        except (NeverReachedError, PortInUseError) as error:
            self._emit(RunRefusal(NodesAbsentError.exit_code, error.args[0], _hint_for(error)))
        except NoRankError as error:
            self._emit(RunRefusal(NodesAbsentError.exit_code, error.args[0], _WHERE_ELSE))
            self._leave()
        except RejectedError as error:
            if self._membership is not None:
                self._emit(RendezvousLost(self._ending_for(LostError(EndKind.COORDINATOR_GONE))))
            else:
                refused = launch_error(error.rejection)
                self._emit(RunRefusal(refused.exit_code, refused.message, refused.hint))
            self._leave()
        except LostError as error:
            self._emit(RendezvousLost(self._ending_for(error)))
            self._leave()
        except WithdrawnError as error:
            self._withdraw(error)

    def _leave(self) -> None:
        participant = self._arrival.participant if self._membership is None else self._membership.participant
        if participant is not None:
            participant.leave()

    def _withdraw(self, withdrawn: WithdrawnError) -> None:
        """Leave before the run begins. All others leave too if this is node 0, or if all must stop."""
        lead, ending = self._arrival.lead, withdrawn.ending
        if self._membership is not None:
            self._leave()
            return
        if ending is not None and self._arrival.participant is not None:
            _report(self._arrival.participant, ending)
        if lead is not None and ending is not None and withdrawn.for_all:
            # The others join the next attempt, and learn why it does not start.
            lead.refuse(ending.exit_code, describe_ending(ending))
        elif lead is not None and not self._task.leads:
            lead.move()
        elif lead is not None:
            reason = Phrase(
                "node 0, {place}, was asked to stop before all nodes were connected",
                place=self._task.node.place,
            )
            lead.give_up(NodesAbsentError.exit_code, reason)
        self._leave()
        if lead is None and ending is not None and withdrawn.for_all:
            _refuse(self._arrival, self._task.node, ending)

    def _ending_for(self, error: LostError) -> NodeEnding:
        lines = self._membership.coordinator_excerpt if self._membership is not None else ()
        return NodeEnding(
            error.kind,
            0,
            self._arrival.host,
            NodesAbsentError.exit_code,
            Cause("", lines, lines) if lines else None,
            silent_s=error.silent_s,
        )


def _hint_for(error: NeverReachedError | PortInUseError) -> str:
    if isinstance(error, PortInUseError):
        return error.hint
    return Phrase(
        "check that node 0 has started (it may still be pulling its image, wait to be scheduled, or have "
        "crashed) and that the master address is right"
    )


def _refuse(arrival: Arrival, node: Fingerprint, ending: NodeEnding) -> None:
    """Join as a node that cannot start, so that nobody waits for it, and leave once node 0 knows."""
    reason = Phrase("asked to stop ({signal})", signal=ending.stopped_by)
    me = replace(node, refusal=reason, refusal_code=ending.exit_code)
    connector = Connector(
        replace(arrival.target, me=me),
        timeout_s=_REFUSE_LIMIT_S,
        pause=time.sleep,
        log=lambda _line: None,
        elsewhere=[replace(other, me=me) for other in arrival.elsewhere],
        obstacle=arrival.obstacle,
    )
    deadline = time.monotonic() + _REFUSE_LIMIT_S
    with suppress(NeverReachedError, RejectedError, ConnectionLostError, CoordinatorReplacedError):
        participant = connector.join()
        _report(participant, ending)
        while time.monotonic() < deadline:
            participant.step()
            state = participant.state(RunState)
            if state is not None and state.phase is not RunPhase.WAITING:
                break
            time.sleep(_REFUSE_PAUSE_S)
        participant.leave()


def _report(participant: Participant, ending: NodeEnding) -> None:
    """Report how this node ended: the run may begin at this moment. Nobody reads it while nodes gather."""
    participant.publish(StopAll(ending))
    participant.publish(TrainingEnded(ending, None))
