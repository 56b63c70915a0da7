"""The process of ``wait`` that joins the cluster's rendezvous, on each node.

It reads a WaitTask from stdin, joins, and writes the result to files: the other nodes, and which key may log
in. ``wait`` starts it, and removes those files in the end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from platform_launch.console import print_line
from platform_launch.dist_launch import node_access
from platform_launch.dist_launch.cluster import WaitingCluster
from platform_launch.dist_launch.cluster_formation import ClusterFormation
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.key_trust import KeyTrust
from platform_launch.dist_launch.roster import PURPOSE, NodeReadiness, WaitRoster
from platform_launch.dist_launch.wait_task import WaitTask
from platform_launch.environment import Environment
from platform_launch.errors import InputError, LaunchError, NodesAbsentError
from platform_launch.rendezvous.authentication import Secret, read_secret
from platform_launch.rendezvous.connecting import Connector, JoinTarget, NeverReachedError, RejectedError
from platform_launch.rendezvous.coordinator import Coordinator
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.listening import PortInUseError, listen
from platform_launch.rendezvous.loop import ConnectionLostError
from platform_launch.rendezvous.messages import ConsoleLine, decode
from platform_launch.rendezvous.participant import CoordinatorReplacedError, NodeSession, Participant
from platform_launch.rendezvous.ranks import describe_absent, describe_nodes
from platform_launch.rendezvous.rejection import launch_error
from platform_launch.text import Phrase

# While the cluster forms, and once it is complete.
_QUICK_LOOK_S, _LOOK_S = 0.05, 0.25
_HEARTBEAT_S = 0.5
_AGAIN_S = 1.0
_RETRY_S = 10.0
_SAY_EVERY_S = 5.0
# Commands on rank 0 see the cluster once the others accept its key, or after this long without answers.
_ANSWERS_S = 10.0
# After this long without a heartbeat from node 0, reconnect to it.
_SILENT_S = 40.0


class WaitingNode:
    """Joins the cluster, and rejoins it if the connection is lost."""

    def __init__(self, task: WaitTask, secret: Secret | None) -> None:
        self._task = task
        self._me = task.member
        self._secret = secret
        self._node = Fingerprint(
            node_rank=self._me.rank,
            nnodes=task.nnodes,
            host=self._me.host,
            addresses=(self._me.address,),
            identity=self._me.identity,
            job_id=task.job_id,
        )
        folder = WaitFolder(Path(task.folder))
        self._cluster_file = folder.cluster_file
        self._trust = KeyTrust(folder, task.named_key, authenticated=secret is not None)
        self._formation: ClusterFormation | None = None
        self._session = NodeSession()
        self._port = 0
        self._participant: Participant | None = None
        self._began = time.monotonic()
        self._announced_at = self._began
        self._formed = False
        self._edition = -1
        self._retry_at = float("inf")
        self._complete_at: float | None = None

    def run(self) -> NoReturn:
        """Run until this process is stopped. Raises LaunchError if there can be no cluster."""
        if self._me.rank == 0:
            self._formation = self._form()
        while True:
            try:
                self._participant = self._connector().join()
                self._run_in_cluster(self._participant)
            except NeverReachedError as error:
                raise NodesAbsentError(
                    error.message,
                    "check that node 0 has started (it may still be pulling its image, wait to be scheduled, "
                    "or have crashed) and that the master address is right",
                ) from error
            except RejectedError as error:
                raise launch_error(error.rejection) from error
            except (ConnectionLostError, CoordinatorReplacedError):
                if self._participant is not None:
                    self._participant.close()
                print_line("WARN", "the rendezvous on node 0 broke off; looking for it again")
                time.sleep(_AGAIN_S)

    def leave(self) -> None:
        """Leave the cluster."""
        if self._participant is not None:
            self._participant.leave()

    def _form(self) -> ClusterFormation:
        try:
            listener = listen(self._task.ports, self._task.nnodes)
            self._port = int(listener.getsockname()[1])
            coordinator = Coordinator(
                [listener],
                self._node,
                purpose=PURPOSE,
                log=_print_line,
                secret=self._secret,
                same_nnodes=True,
            )
        except PortInUseError as error:
            raise NodesAbsentError(str(error), error.hint) from error
        return ClusterFormation(coordinator, self._me, self._task.nnodes, print_line)

    def _connector(self) -> Connector:
        """Return a connector; a node of a complete cluster reconnects for as long as it waits."""
        task = self._task
        left_s = max(self._began + task.timeout_s - time.monotonic(), 1.0)
        host, ports = task.master_addr, task.ports
        if self._me.rank == 0:
            host, ports = "127.0.0.1", (self._port,)
        return Connector(
            JoinTarget(host, ports, PURPOSE, self._node, self._secret, details=self._me),
            timeout_s=float("inf") if self._formed else left_s,
            pause=time.sleep,
            log=_print_line,
            session=self._session,
        )

    def _run_in_cluster(self, participant: Participant) -> NoReturn:
        self._edition, heartbeat_at = -1, 0.0
        while True:
            now = time.monotonic()
            if self._formation is not None:
                self._formation.step()
            if now - heartbeat_at >= _HEARTBEAT_S:
                heartbeat_at = now
                participant.step()
                if participant.coordinator_silent_s >= _SILENT_S:
                    raise ConnectionLostError
            roster = self._roster(participant)
            if roster is not None and roster.members:
                new = roster.edition != self._edition or now >= self._retry_at
                if new and (self._formed or not self._others_still_prepare(now)):
                    self._write(participant, roster)
            elif not self._formed:
                self._wait_for_the_others(roster, now)
            time.sleep(self._pause_s())

    def _pause_s(self) -> float:
        is_complete = self._formed and (self._formation is None or self._formation.all_are_ready)
        return _LOOK_S if is_complete else min(_QUICK_LOOK_S + self._task.nnodes / 4000, _LOOK_S)

    def _others_still_prepare(self, now: float) -> bool:
        if self._formation is None or self._formation.others_have_answered():
            return False
        self._complete_at = self._complete_at or now
        return now - self._complete_at < _ANSWERS_S

    def _roster(self, participant: Participant) -> WaitRoster | None:
        """Return the roster, on rank 0 its own; None if there is none with this node."""
        if self._formation is not None:
            return self._formation.roster
        roster = participant.state(WaitRoster)
        if roster is None or not roster.members:
            return roster
        in_order = [member.rank for member in roster.members] == list(range(self._task.nnodes))
        return roster if in_order and roster.members[self._me.rank] == self._me else None

    def _wait_for_the_others(self, roster: WaitRoster | None, now: float) -> None:
        timeout_s, waited_s = self._task.timeout_s, now - self._began
        absent = roster.absent if roster is not None else ()
        if waited_s >= timeout_s:
            raise NodesAbsentError(
                Phrase(
                    "{absent}; gave up after {limit:g} s",
                    absent=describe_absent(absent, self._task.nnodes, {}),
                    limit=timeout_s,
                ),
                (
                    "check the missing nodes: they may still pull their image, wait to be "
                    "scheduled, or have crashed"
                ),
            )
        others = [rank for rank in absent if rank != self._me.rank]
        if others and now - self._announced_at >= _SAY_EVERY_S:
            self._announced_at = now
            whom = f"{len(others)} of {self._task.nnodes} nodes: {describe_nodes(others)}"
            print_line(
                "INFO",
                Phrase(
                    "waiting for {whom} ({waited:.0f} of {limit:g} s)",
                    whom=whom,
                    waited=waited_s,
                    limit=timeout_s,
                ),
            )

    def _write(self, participant: Participant, roster: WaitRoster) -> None:
        """Write the roster to files, and report the result."""
        self._edition, self._retry_at = roster.edition, float("inf")
        cluster = WaitingCluster(
            rank=self._me.rank,
            identity=roster.members[0].identity,
            formed_at=roster.formed_at,
            members=roster.members,
        )
        offered = roster.members[0].public_key
        try:
            key = self._me.public_key or self._trust.decide(offered)
            node_access.install(cluster, key, self._task.own_sshd, self._task.key)
            problem = self._trust.objection(offered)
        except InputError as error:
            problem = error.message
        except OSError as error:
            problem = Phrase(
                "keys and cluster information could not be written here: {problem}", problem=error
            )
            self._retry_at = time.monotonic() + _RETRY_S
        if problem:
            print_line("ERROR", problem)
        elif not self._formed:
            print_line(
                "INFO",
                Phrase(
                    "node {rank} of {nodes} waits; cluster information: {file}",
                    rank=self._me.rank,
                    nodes=self._task.nnodes,
                    file=self._cluster_file,
                ),
            )
        self._formed = True
        readiness = NodeReadiness(roster.edition, problem)
        participant.publish(readiness)
        if self._formation is not None:
            self._formation.own_readiness = readiness


def _print_line(line: ConsoleLine) -> None:
    print_line(line.level, line.text)


def main(_arguments: Sequence[str]) -> NoReturn:
    """Run until asked to stop."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    os.umask(0o077)
    # Skips the interpreter's shutdown, which waits for threads.
    os._exit(_join())


def _join() -> int:
    node: WaitingNode | None = None
    try:
        task = decode(sys.stdin.buffer.readline(), WaitTask)
        node = WaitingNode(task, read_secret(Environment.of_this_process()))
        node.run()
    except SystemExit:
        return 0
    except LaunchError as error:
        print_line(
            "ERROR",
            Phrase("{message}; {hint}", message=error.message, hint=error.hint)
            if error.hint
            else error.message,
        )
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return LaunchError.exit_code
    finally:
        if node is not None:
            node.leave()
