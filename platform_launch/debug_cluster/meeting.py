"""The meeting process of a waiting node: ``python -m platform_launch.debug_cluster.meeting``.

It reads an Errand on stdin, takes a place at node 0's meeting and keeps it, and puts what is agreed there
into files: who the others are, and rank 0's key. ``wait`` starts it, and takes those away in the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import NoReturn

from platform_launch.debug_cluster import install
from platform_launch.debug_cluster.cluster import Cluster, Member
from platform_launch.debug_cluster.folder import Folder
from platform_launch.debug_cluster.register import EDITION, ROSTER, Readiness, Register, Roster
from platform_launch.errors import LaunchError, NodesAbsentError, TopologyError
from platform_launch.hardware import ports
from platform_launch.rollcall.approach import Approach, NeverReachedError
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.guest import Guest
from platform_launch.rollcall.lines import Invitation
from platform_launch.rollcall.store import Store, open_store
from platform_launch.supervise.lines import say

_LOOK_S = 0.25
_BEAT_S = 1.0
_AGAIN_S = 1.0
_RETRY_S = 10.0
# A store that is silent for this long hangs inside torch: the process ends, and ``wait`` starts another.
_MUTE_S = 40.0
_FACT = "member"


@dataclass(frozen=True)
class Errand:
    """What ``wait`` wants done. ``member`` is this node; ``key`` the private key of rank 0, else empty.

    ``own_sshd`` tells that rank 0's key goes into the private server's file, not into the user's.
    """

    member: dict[str, object]
    nnodes: int
    job_id: str | None
    master_addr: str
    meeting_port: int
    timeout_s: float
    folder: str
    key: str
    own_sshd: bool

    def to_json(self) -> str:
        """Return the line that travels."""
        return json.dumps(asdict(self))


class Attendance:
    """Comes to the meeting, again when it was lost, and stays."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._me = Member(**errand.member)  # type: ignore[arg-type]
        self._fingerprint = Fingerprint(
            node_rank=self._me.rank,
            nnodes=errand.nnodes,
            host=self._me.host,
            addresses=(self._me.address,),
            identity=self._me.identity,
            job_id=errand.job_id,
            gpus=0,
            facts={_FACT: json.dumps(errand.member)},
        )
        self._register: Register | None = None
        self._formed = False
        self._retry_at = float("inf")
        self._guest: Guest | None = None
        self.answered_at = time.monotonic()
        self.in_touch = False

    def attend(self) -> NoReturn:
        """Stay until this process is ended. Raises LaunchError when there can be no cluster."""
        if self._me.rank == 0:
            self._register = Register(self._open(), self._fingerprint, say)
        deadline = time.monotonic() + self._errand.timeout_s
        while True:
            try:
                self._guest = self._approach(deadline).arrive()
                self._stay(self._guest, deadline)
            except NeverReachedError as error:
                raise NodesAbsentError(
                    str(error), "look at node 0: still pulling its image, not scheduled, or another address"
                ) from error
            except RuntimeError:
                self.in_touch = False
                say("WARN", "the meeting on node 0 broke off; looking for it again")
                time.sleep(_AGAIN_S)

    def leave(self) -> None:
        """Say that this node beats no more."""
        if self._guest is not None and self.in_touch:
            with suppress(RuntimeError):
                self._guest.withdraw()

    def _open(self) -> Store:
        port = self._errand.meeting_port
        try:
            return open_store("127.0.0.1", port, hosting=True)
        except RuntimeError as error:
            found = ports.look(port)
            raise NodesAbsentError(
                f"INIT_MASTER_PORT {port} cannot be used: {found.problem or 'refused'}; it is held by "
                f"{found.held_by()}",
                "end that process, or set INIT_MASTER_PORT to a free port on all nodes",
            ) from error

    def _approach(self, deadline: float) -> Approach:
        """A node of a cluster that was formed looks for it as long as it waits."""
        errand = self._errand
        left_s = float("inf") if self._formed else max(deadline - time.monotonic(), 1.0)
        invitation = Invitation(
            fingerprint=self._fingerprint.to_json(),
            master_addr=errand.master_addr,
            master_port=errand.meeting_port,
            meeting_port=errand.meeting_port,
            roll_call_timeout_s=left_s,
            node_timeout_s=_MUTE_S,
            grace_s=0.0,
            log_path="",
            rejoining=True,  # nothing of a training is open yet: it is not probed
        )
        return Approach(invitation, self._fingerprint, pause=time.sleep, say=say)

    def _stay(self, guest: Guest, deadline: float) -> NoReturn:
        edition, beat_at = -1, 0.0
        self.in_touch = True
        while True:
            if self._register is not None:
                self._register.step()
            now_edition = guest.store.add(EDITION, 0)
            self.answered_at = time.monotonic()
            if now_edition != edition or self.answered_at >= self._retry_at:
                edition = now_edition
                self._take(guest, Roster.from_json(guest.store.get(ROSTER)), edition)
            if time.monotonic() - beat_at >= _BEAT_S:
                beat_at = time.monotonic()
                guest.beat()
                self._heed(guest)
            if not self._formed and time.monotonic() >= deadline:
                self._give_up(guest)
            time.sleep(_LOOK_S)

    def _heed(self, guest: Guest) -> None:
        key = f"turned away/{guest.ticket}"
        if guest.store.check([key]):
            raise TopologyError(
                f"node 0 gives this node no place: {guest.store.get(key).decode()}",
                "every node needs a rank of its own and the same number of nodes",
            )

    def _give_up(self, guest: Guest) -> NoReturn:
        absent = Roster.from_json(guest.store.get(ROSTER)).absent
        raise NodesAbsentError(
            f"{absent}, after {self._errand.timeout_s:g} s",
            "look at the absent nodes: still pulling their image, not scheduled, or crashed",
        )

    def _take(self, guest: Guest, roster: Roster, edition: int) -> None:
        """Put the roster into files, and say how that went."""
        if roster.absent:
            return
        try:
            install.install(self._cluster(roster), self._errand.own_sshd, self._errand.key)
            problem, self._retry_at = "", float("inf")
        except (OSError, ValueError) as error:
            problem = f"keys and cluster information could not be written here: {error}"
            say("ERROR", problem)
            self._retry_at = time.monotonic() + _RETRY_S
        guest.store.set(f"readiness/{guest.ticket}", Readiness(edition, problem).to_json())
        if not self._formed and not problem:
            path = Folder(Path(self._errand.folder)).cluster_file
            say("INFO", f"node {self._me.rank} of {self._errand.nnodes} waits; cluster information: {path}")
        self._formed = True

    def _cluster(self, roster: Roster) -> Cluster:
        """Read the roster. Raises ValueError for what did not come from a ``wait``."""
        guests = [Fingerprint.from_json(text) for text in roster.guests]
        return Cluster(
            rank=self._me.rank,
            identity=guests[0].identity,
            formed_at=roster.formed_at,
            meeting_port=self._errand.meeting_port,
            members=tuple(member_of(guest) for guest in guests),
        )


def member_of(guest: Fingerprint) -> Member:
    """Return the node behind a fingerprint. Raises ValueError."""
    try:
        member = Member(**json.loads(guest.facts[_FACT]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"node {guest.node_rank} came without its SSH facts") from error
    if member.rank != guest.node_rank:
        raise ValueError(f"node {guest.node_rank} calls itself node {member.rank}")
    return member


def main() -> int:
    """Attend until told to end."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    os.umask(0o077)
    attendance = Attendance(Errand(**json.loads(sys.stdin.readline())))
    Thread(target=_watch, args=(attendance,), name="watch", daemon=True).start()
    try:
        attendance.attend()
    except LaunchError as error:
        say("ERROR", f"{error.message}; {error.hint}" if error.hint else error.message)
        return error.exit_code
    finally:
        attendance.leave()


def _watch(attendance: Attendance) -> NoReturn:
    while True:
        time.sleep(1.0)
        if attendance.in_touch and time.monotonic() - attendance.answered_at > _MUTE_S:
            say("WARN", f"node 0 has not answered for {_MUTE_S:g} s; looking for it again")
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
