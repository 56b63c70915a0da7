"""The cable between a node and the server is pulled: the training goes on, the group says what it knows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from platform_launch.hardware import running
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.waiting import until
from tests.procguard.faults_lab import Site, end_training, site

pytestmark = requires_netns

CUT_S = 4.0


@contextmanager
def wired(folder: Path) -> Iterator[tuple[Site, Host]]:
    """A server and two nodes on hosts of their own; the host of gn7 is the one to cut off."""
    with (
        hosts(3) as (server, first, second),
        server.entered(),
        site(folder, listen=f"{server.address}:8765") as here,
    ):
        here.hosts = {"gn6": first, "gn7": second}
        here.join("gn6", "gn7")
        yield here, second


@pytest.mark.nightly
def test_a_cut_that_is_shorter_than_the_limit(tmp_path: Path) -> None:
    with wired(tmp_path) as (here, cable):
        here.launch(silent_after_s=2, fail_after_s=20 * CUT_S)
        pids = here.pids()
        cable.cut()
        assert here.reach("degraded")["silent"] == ["gn7-0"]
        time.sleep(max(CUT_S - 2, 0))
        assert running.find(pids[1]), "nothing ends a training whose agent cannot be heard"
        cable.heal()
        assert here.reach("running")["silent"] == []
        assert here.pids() == pids
        assert here.actions()[-2:] == ["degraded", "recovered"]
        for node in here.nodes:
            end_training(node, 0)
        here.reach("finished")
        assert here.starts() == [1, 1]


def test_a_cut_that_outlasts_the_limit(tmp_path: Path) -> None:
    with wired(tmp_path) as (here, cable):
        here.launch(silent_after_s=2, fail_after_s=1.5 * CUT_S)
        pids = here.pids()
        cable.cut()
        here.reach("degraded")
        failure = here.reach("failed")["failure"]
        assert (failure["worker"], failure["text"].startswith("no heartbeat for")) == ("gn7-0", True), failure
        assert running.find(pids[0]) is None, "the others do not compute for nothing"
        assert running.find(pids[1]), "and this one cannot be told yet"
        cable.heal()
        until(lambda: running.find(pids[1]) is None, "the training to be ended, now that its agent is heard")
        assert here.reach("failed")["failure"]["text"] == failure["text"]
        assert here.starts() == [1, 1]
