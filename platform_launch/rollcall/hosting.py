"""Node 0's side of the meeting process: opens the store, checks itself, and turns roll call into vigil."""

from __future__ import annotations

import os
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

from platform_launch.errors import NodesAbsentError, TopologyError
from platform_launch.hardware import ports
from platform_launch.rollcall.approach import CONNECT_LIMIT_S, enter
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.host import CORRECT_MASTER_ADDR, Host
from platform_launch.rollcall.lines import Invitation
from platform_launch.rollcall.reach import is_here, reach, resolve
from platform_launch.rollcall.store import Store, open_store
from platform_launch.rollcall.vigil import Vigil

_GATHER_STEP_S = 0.05
_VIGIL_STEP_S = 0.5
# How long a master address that is not this machine's is borne before the job is refused.
_WRONG_MASTER_S = 20.0
# The address of a service leads here a moment after this machine is ready.
_SAY_FIRST_S = 2.0
_SAY_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0


class PortTakenError(Exception):
    """A port of node 0 is taken; the message says which and by whom."""


class Hosting:
    """Holds the meeting in a thread of its own. ``closing`` asks it to close while others still train."""

    def __init__(self, invitation: Invitation, me: Fingerprint, say: Callable[[str, str], None]) -> None:
        self._invitation = invitation
        self._me = me
        self._say = say
        self._refusals: deque[tuple[int, str, str]] = deque()
        self._master_port: socket.socket | None = None
        self._hurried = False
        self.closing = Event()
        self._thread = Thread(target=self._hold_or_die, name="hosting", daemon=True)

    def open(self) -> None:
        """Open the store and start. Raises PortTakenError."""
        # First, since whoever finds the store looks for MASTER_PORT next.
        self._open_master_port()
        port = self._invitation.meeting_port
        try:
            self._store: Store = open_store("127.0.0.1", port, hosting=True)
        except RuntimeError as error:
            raise PortTakenError(f"INIT_MASTER_PORT {port} {_taken(port)}") from error
        self._host = Host(
            self._store,
            self._me,
            timeout_s=self._invitation.roll_call_timeout_s,
            node_timeout_s=self._invitation.node_timeout_s,
            say=self._say,
        )
        self._thread.start()

    def refuse(self, exit_code: int, reason: str, hint: str = "") -> None:
        """Send everyone home while they gather; from any thread."""
        self._refusals.append((exit_code, reason, hint))

    def give_up(self, exit_code: int, reason: str) -> None:
        """Send home who has come, and wait for nobody else."""
        self._hurried = True
        self.refuse(exit_code, reason)

    def leave(self) -> None:
        """Wait until every guest has read how it ended, or is gone."""
        if self._thread.ident is not None:  # not started where the meeting's port was taken
            self._thread.join(self._invitation.node_timeout_s)

    def _hold_or_die(self) -> None:
        """Without a host the guests would wait for ever: a fault here ends the process, which they notice."""
        try:
            self._hold()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _hold(self) -> None:
        Thread(target=self._check_master_address, name="master-address", daemon=True).start()
        while self._host.step().phase == "waiting":
            while self._refusals:
                exit_code, reason, hint = self._refusals.popleft()
                self._host.refuse(exit_code, (reason,), hint)
            time.sleep(_GATHER_STEP_S)
        if self._master_port is not None:
            with suppress(OSError):
                self._master_port.shutdown(socket.SHUT_RDWR)
            self._master_port.close()
        if self._host.state.phase == "running":
            self._keep_vigil()
        else:
            while not self._host.all_left(hurried=self._hurried):
                time.sleep(_GATHER_STEP_S)

    def _open_master_port(self) -> None:
        """Let other nodes find MASTER_PORT open while they gather: the training will need it."""
        port = self._invitation.master_port
        try:
            self._master_port = ports.listen(port)
        except OSError:
            reason = f"MASTER_PORT {port} on node 0, {self._me.place}, {_taken(port)}"
            self.refuse(NodesAbsentError.exit_code, reason, "end that process, or pass another --master-port")
        else:
            Thread(target=_greet, args=(self._master_port,), name="master-port", daemon=True).start()

    def _keep_vigil(self) -> None:
        """Watch over the run until all have read its outcome."""
        vigil = Vigil(
            self._store,
            self._host.tickets,
            self._host.present,
            clock_offsets_s=self._host.clock_offsets_s,
            node_timeout_s=self._invitation.node_timeout_s,
            grace_s=self._invitation.grace_s,
        )
        while vigil.outcome is None:
            vigil.step()
            if self.closing.is_set():
                vigil.close()
            time.sleep(_VIGIL_STEP_S if vigil.outcome is None else 0)
        while not vigil.all_left:
            vigil.step()
            time.sleep(_GATHER_STEP_S)

    def _check_master_address(self) -> None:
        """Say it when MASTER_ADDR is not this machine: then the others look for node 0 elsewhere."""
        began = time.monotonic()
        say_at = began + _SAY_FIRST_S
        while self._host.state.phase == "waiting":
            problem, certain = self._master_address_problem()
            self._host.master_addr_problem = problem
            if not problem:
                return
            now = time.monotonic()
            if certain and now - began > _WRONG_MASTER_S and len(self._host.present) <= 1:
                self.refuse(TopologyError.exit_code, problem, CORRECT_MASTER_ADDR)
                return
            if now >= say_at:
                say_at = now + _SAY_EVERY_S
                self._say("WARN", problem)
            time.sleep(_LOOK_EVERY_S)

    def _master_address_problem(self) -> tuple[str, bool]:
        """Return what is wrong with MASTER_ADDR, if anything, and whether it is certainly wrong."""
        name, port = self._invitation.master_addr, self._invitation.meeting_port
        found = resolve(name, limit_s=5.0)
        if not found:
            return (
                f"MASTER_ADDR={name!r} does not resolve on node 0, so that others may not find it either",
                False,
            )
        if any(is_here(family, address) for family, address in found):
            return "", False
        # The address of a service is on no interface, and yet leads here.
        guest, _ = enter(reach(name, port, CONNECT_LIMIT_S), name, port, self._me)
        if guest is not None and guest.host == self._me.identity:
            return "", False
        addresses = ", ".join(address for _, address in found)
        return (
            f"MASTER_ADDR={name!r} is {addresses}, which is not this machine, {self._me.place}, "
            "although it is node 0: others look for node 0 there"
        ), True


def _taken(port: int) -> str:
    found = ports.look(port)
    return f"cannot be used: {found.problem or 'refused'}; it is held by {found.held_by()}"


def _greet(listening: socket.socket) -> None:
    """Take each connection and drop it, without leaving the port in TIME_WAIT."""
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
