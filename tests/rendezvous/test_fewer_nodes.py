"""Jobs that may continue with fewer nodes once no spare is left (``--min-nodes``)."""

from __future__ import annotations

import pytest

from platform_launch.errors import HardwareError, NodesAbsentError
from platform_launch.health.finding import DeviceFinding, Grade, node_health
from platform_launch.rendezvous.ending import EndKind, NodeEnding
from platform_launch.rendezvous.run.deciding import decide
from platform_launch.rendezvous.run.gathering import Gathering
from platform_launch.rendezvous.run.state import RunPhase
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import Live, live, until
from tests.rendezvous.nodes import fingerprint

# A gathering that lacks nobody starts at once; one that may go on without a node does so after this time.
SOON_S = 0.5


def gather(rendezvous: Live, nnodes: int, *, restarts: int = 1, spares: int = 0, least: int = 2) -> Gathering:
    """Begin the roll call of a restart; from now on, the test makes its steps."""
    rendezvous.halted.set()
    with rendezvous.lock:
        return Gathering(
            rendezvous.coordinator,
            fingerprint(0, nnodes, restarts_used=restarts),
            timeout_s=SOON_S,
            node_timeout_s=LIMIT_S,
            log=rendezvous.said.append,
            spares=spares,
            min_nodes=least,
        )


def test_restart_without_a_lost_node_leaves_no_gap_in_the_ranks() -> None:
    with live(4) as rendezvous:
        gathering = gather(rendezvous, 4)
        nodes = [rendezvous.participant(rank) for rank in (0, 2, 3)]
        for node in nodes:
            node.join()
        until(
            lambda: gathering.step().phase is not RunPhase.WAITING and all(n.started for n in nodes), *nodes
        )
        assert (gathering.state.phase, gathering.state.nnodes) == (RunPhase.RUNNING, 3)
        assert [node.membership.node_rank for node in nodes if node.membership] == [0, 1, 2]
        # Whoever comes back finds no free rank in this run, whichever it had, and waits for the next restart.
        for rank in (1, 3):
            back = rendezvous.participant(rank, identity=f"started again {rank}")
            back.join()
            until(lambda back=back: bool(gathering.step()) and back.membership is not None, back, *nodes)  # type: ignore[misc]
            assert back.membership is not None
            assert back.membership.node_rank is None


def test_next_restart_assigns_missing_ranks_to_returned_nodes() -> None:
    with live(3) as rendezvous:
        rendezvous.halted.set()
        with rendezvous.lock:
            gathering = Gathering(
                rendezvous.coordinator,
                fingerprint(0, 3, restarts_used=2),
                timeout_s=LIMIT_S,
                node_timeout_s=LIMIT_S,
                log=rendezvous.said.append,
                min_nodes=2,
                trained=2,
            )
        nodes = [rendezvous.participant(0), rendezvous.participant(1, stand_in=True)]
        nodes.append(rendezvous.participant(1, identity="started again", spare=True))
        for node in nodes:
            node.join()
        until(lambda: gathering.step().phase is RunPhase.RUNNING, *nodes)
        assert gathering.state.nnodes == 3
        assert gathering.present[2].identity == "started again"


@pytest.mark.parametrize(("restarts", "ranks"), [(0, (0, 2)), (1, (0,))])
def test_first_start_needs_all_nodes_and_a_restart_needs_min_nodes(
    restarts: int, ranks: tuple[int, ...]
) -> None:
    with live(3) as rendezvous:
        gathering = gather(rendezvous, 3, restarts=restarts)
        nodes = [rendezvous.participant(rank) for rank in ranks]
        for node in nodes:
            node.join()
        until(lambda: gathering.step().phase is not RunPhase.WAITING, *nodes)
        assert gathering.state.refusal is not None
        assert gathering.state.refusal.exit_code == NodesAbsentError.exit_code


def test_spare_is_preferred_to_fewer_nodes() -> None:
    with live(3) as rendezvous:
        gathering = gather(rendezvous, 3, spares=1)
        nodes = [*map(rendezvous.participant, (0, 2)), rendezvous.participant(3, spare=True)]
        for node in nodes:
            node.join()
        gathering._lost.add(1)
        until(lambda: gathering.step().phase is RunPhase.RUNNING, *nodes)
        assert (gathering.state.nnodes, gathering.present[1].host) == (3, "gpu-3")


def test_restart_excludes_a_node_that_broke_meanwhile() -> None:
    with live(3) as rendezvous:
        gathering = gather(rendezvous, 3)
        rendezvous.participant(1, refusal="no GPU", refusal_code=HardwareError.exit_code).join()
        nodes = [*map(rendezvous.participant, (0, 2))]
        for node in nodes:
            node.join()
        until(lambda: gathering.step().phase is not RunPhase.WAITING, *nodes)
        assert (gathering.state.phase, gathering.state.nnodes) == (RunPhase.RUNNING, 2)


@pytest.mark.parametrize(("may_lose", "restart"), [(1, True), (0, False)])
def test_bad_node_is_excluded_if_the_job_can_continue_without_it(may_lose: int, restart: bool) -> None:
    health = node_health([DeviceFinding("gpu-lost", Grade.BAD, "GPU 3", "no longer answers")])
    ending = NodeEnding(EndKind.FAILED, 1, "gpu-1", 9, health=health)
    well = NodeEnding(EndKind.FAILED, 0, "gpu-0", 1, health=node_health([]))
    outcome = decide(
        ending, {0: well, 1: ending}, {}, None, lost=(), spares=may_lose, not_again=None, may_restart=True
    )
    assert (outcome.restart, outcome.bad) == (restart, (1,) if restart else ())
