"""One node's part in a run, from the first try to reach node 0 to what its launcher hears at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Queue

from platform_launch.errors import NodesAbsentError
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.connecting import CoordinatorRefusedError, NeverReachedError
from platform_launch.rendezvous.ending import Cause, EndKind, NodeEnding, describe_ending
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.handshake import RejectedError
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.rendezvous.run.arriving import Arrival
from platform_launch.rendezvous.run.launcher import RendezvousLost, RunTask
from platform_launch.rendezvous.run.leaving import GivenUpError, LostError, NoPlaceError
from platform_launch.rendezvous.run.own_launcher import OwnLauncher
from platform_launch.rendezvous.run.refusing import refuse
from platform_launch.rendezvous.run.staying import Stay
from platform_launch.rendezvous.store import PortTakenError, StoreError
from platform_launch.rendezvous.verdict import RunRefusal
from platform_launch.text import Phrase

_WHERE_ELSE = "end that run, or give this one another MASTER_ADDR, MASTER_PORT or rank"


class TakingPart:
    """Runs in a thread of the helper process; ``commands`` brings what the launcher says, None at its end."""

    def __init__(
        self,
        task: RunTask,
        me: Fingerprint,
        secret: Secret | None,
        launcher: OwnLauncher,
        commands: Queue[Message | None],
        emit: Callable[[Message], None],
    ) -> None:
        self._task = task
        self._me = me
        self._launcher = launcher
        self._commands = commands
        self._emit = emit
        self._arrival = Arrival(task, me, secret, commands, emit)
        self._stay: Stay | None = None

    def run(self) -> None:
        """Arrive, stay, leave."""
        try:
            arrived = self._arrival.run()
            if arrived is not None:
                lead = self._arrival.lead
                self._stay = Stay(self._task, arrived, lead, self._launcher, self._commands, self._emit)
                self._stay.run()
            self._leave()
        except (NeverReachedError, PortTakenError) as error:
            if self._task.rejoining:  # the training goes on; the launcher will have this tried again
                return
            self._emit(RunRefusal(NodesAbsentError.exit_code, error.args[0], _hint_for(error)))
        except CoordinatorRefusedError as error:
            self._emit(error.refusal)
        except NoPlaceError as error:
            self._emit(RunRefusal(NodesAbsentError.exit_code, error.args[0], _WHERE_ELSE))
            self._leave()
        except RejectedError as error:
            if self._stay is not None:
                self._emit(RendezvousLost(self._ending_for(LostError(EndKind.COORDINATOR_GONE))))
            else:
                refused = launch_error(error.rejection)
                self._emit(RunRefusal(refused.exit_code, refused.message, refused.hint))
            self._leave()
        except LostError as error:
            self._emit(RendezvousLost(self._ending_for(error)))
        except GivenUpError as error:
            self._withdraw(error.ending)
        if self._arrival.lead is not None:
            self._arrival.lead.leave()

    def _leave(self) -> None:
        participant = self._arrival.participant if self._stay is None else self._stay.participant
        with suppress(StoreError):
            if participant is not None:
                participant.leave()

    def _withdraw(self, ending: NodeEnding | None) -> None:
        """Leave before the run begins; all others do too where this is node 0, or where all must end."""
        lead = self._arrival.lead
        if lead is not None and not self._task.leads and ending is None:
            lead.move()
        elif lead is not None and ending is None:
            reason = Phrase(
                "node 0, {place}, was told to end before all nodes were there", place=self._me.place
            )
            lead.give_up(NodesAbsentError.exit_code, reason)
        elif lead is not None and ending is not None:  # the others come for the next start, and hear it
            lead.refuse(ending.exit_code, describe_ending(ending))
        self._leave()
        if lead is None and ending is not None:
            arrival = self._arrival
            told = Phrase("told to end ({signal})", signal=ending.stopped_by)
            me = replace(self._me, refusal=told, refusal_code=ending.exit_code)
            refuse(arrival.target, me, elsewhere=arrival.elsewhere, obstacle=arrival.obstacle)

    def _ending_for(self, error: LostError) -> NodeEnding:
        lines = self._stay.coordinator_excerpt if self._stay is not None else ()
        return NodeEnding(
            error.kind,
            0,
            self._arrival.host,
            NodesAbsentError.exit_code,
            Cause("", lines, lines) if lines else None,
            silent_s=error.silent_s,
        )


def _hint_for(error: NeverReachedError | PortTakenError) -> str:
    if isinstance(error, PortTakenError):
        return error.hint
    return Phrase(
        "look at node 0: still pulling its image, not scheduled, crashed, or under another name or address"
    )
