"""The way to node 0: its name, its port, its meeting, and a place in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Thread

from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.guest import Guest
from platform_launch.rollcall.lines import Invitation
from platform_launch.rollcall.reach import Reach, Step, reach
from platform_launch.rollcall.store import open_store

CONNECT_LIMIT_S = 3.0
_RETRY_S = 0.5
_SAY_EVERY_S = 5.0


class NeverReachedError(Exception):
    """Time is up; the message says what stood in the way last."""


class Approach:
    """Tries until node 0 is reached. ``pause(seconds)`` waits, and may raise to give up.

    ``say(level, text)`` hears every few seconds what stands in the way.
    """

    def __init__(
        self,
        invitation: Invitation,
        me: Fingerprint,
        *,
        pause: Callable[[float], None],
        say: Callable[[str, str], None],
    ) -> None:
        self._invitation = invitation
        self._me = me
        self._pause = pause
        self._say = say
        self.rejoining = invitation.rejoining
        self._host = "127.0.0.1" if me.node_rank == 0 else invitation.master_addr
        self._deadline = time.monotonic() + invitation.roll_call_timeout_s
        self._began = time.monotonic()
        self._said_at = float("-inf")

    def arrive(self) -> Guest:
        """Reach the meeting and take a place. Raises NeverReachedError."""
        while True:
            guest, obstacle = self._try()
            if guest is not None:
                guest.arrive()
                return guest
            now = time.monotonic()
            if now >= self._deadline:
                waited_s = self._invitation.roll_call_timeout_s
                raise NeverReachedError(f"node 0 was not reached in {waited_s:g} s: {obstacle}")
            if now - self._said_at >= _SAY_EVERY_S:
                self._said_at = now
                self._say("INFO", f"waiting for node 0 for {now - self._began:.0f} s: {obstacle}")
            self._pause(_RETRY_S)

    def reconnect(self, known: Guest) -> Guest | None:
        """Return a new connection to the meeting that is known, None when it cannot be had right now.

        Raises ConnectionRefusedError when node 0 is there and the meeting is not, or not the same.
        """
        found = reach(self._host, self._invitation.meeting_port, CONNECT_LIMIT_S)
        guest, _ = self._enter(found)
        if found.step is Step.REFUSED or (guest is not None and guest.host != known.host):
            raise ConnectionRefusedError
        if guest is None:
            return None
        guest.succeed(known)
        return guest

    def _try(self) -> tuple[Guest | None, str]:
        found = reach(self._host, self._invitation.meeting_port, CONNECT_LIMIT_S)
        guest, obstacle = self._enter(found)
        if guest is None or self._me.node_rank == 0 or self.rejoining:
            return guest, obstacle
        guest.fingerprint = replace(self._me, master_port_problem=self._probe_master_port())
        return guest, ""

    def _enter(self, found: Reach) -> tuple[Guest | None, str]:
        return enter(found, self._host, self._invitation.meeting_port, self._me)

    def _probe_master_port(self) -> str:
        """Training will need MASTER_PORT, which node 0 keeps open while the nodes gather."""
        port = self._invitation.master_port
        found = reach(self._host, port, CONNECT_LIMIT_S)
        if found.step is Step.OPEN:
            return ""
        return (
            f"reaches node 0 on port {self._invitation.meeting_port} (INIT_MASTER_PORT), "
            f"but not on MASTER_PORT: {found.in_words(self._host, port)}"
        )


def enter(found: Reach, host: str, port: int, me: Fingerprint) -> tuple[Guest | None, str]:
    """Return a guest of the meeting at an address just reached, or None and what stands in the way."""
    if found.step is not Step.OPEN:
        return None, found.in_words(host, port)
    # The address, not the name: it is the one that was just reached.
    guest = _within_limit(
        lambda: Guest(open_store(found.address, port, hosting=False, limit_s=CONNECT_LIMIT_S), me)
    )
    if guest is not None and guest.host:
        return guest, ""
    return None, f"{host}:{port} ({found.address}) accepts connections, but no roll call answers there"


def _within_limit(opening: Callable[[], Guest]) -> Guest | None:
    """Return what is opened, None when that fails or takes too long.

    TCPStore waits for ever for the first answer of whatever took its connection: the thread stays behind.
    """
    opened: list[Guest] = []

    def work() -> None:
        with suppress(RuntimeError):
            opened.append(opening())

    thread = Thread(target=work, name="open", daemon=True)
    thread.start()
    thread.join(2 * CONNECT_LIMIT_S)
    return opened[0] if opened else None
