"""Jobs with spares: more nodes are started, and the end of one does not end the others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError
from platform_launch.jobs import TARGETS, WITH_SPARES, render
from platform_launch.platforms import detect
from platform_launch.topology import Overrides
from tests.jobs.controllers import CONTROLLERS
from tests.jobs.manifests import a_job, documents


@pytest.mark.parametrize("target", [target for target in WITH_SPARES if target in CONTROLLERS])
def test_every_node_learns_whether_it_is_a_spare(target: str) -> None:
    text = render(a_job(spares=1), target)
    for rank in range(3):
        node = CONTROLLERS[target](text, rank)
        assert "--spares 1 --max-restarts 3" in (" ".join(node.argv) or text)
        found = detect(Environment(node.variables, hostname=node.hostname), Overrides(spares=1))
        assert (found.nnodes, found.node_rank, found.is_spare) == (2, rank, rank == 2)


def test_slurm_leaves_the_other_nodes_alone() -> None:
    text = render(a_job(spares=2), "slurm")
    assert "#SBATCH --nodes=4\n" in text
    assert "#SBATCH --no-kill\n" in text
    assert re.search(r"^srun --kill-on-bad-exit=0 --no-kill --wait=0 ", text, re.MULTILINE)
    assert "--kill-on-bad-exit=1" in render(a_job(), "slurm")


def test_a_leaderworkerset_starts_a_lost_pod_again_and_not_its_peers() -> None:
    (lws,) = documents(render(a_job(spares=1), "leaderworkerset"))
    assert lws["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "None"


def test_restarts_that_the_job_names_stay() -> None:
    job = a_job(spares=1, options=("--max-restarts=7",))
    assert job.command_arguments == ("--max-restarts=7", "--spares", "1")


@pytest.mark.parametrize("target", [target for target in TARGETS if target not in WITH_SPARES])
def test_targets_that_end_all_nodes_with_one_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match=f"target {target} cannot have spares or min_nodes"):
        render(a_job(spares=1), target)
    with pytest.raises(UsageError, match=f"target {target} cannot have spares or min_nodes"):
        render(a_job(min_nodes=1), target)


@pytest.mark.parametrize("target", [target for target in WITH_SPARES if target in CONTROLLERS])
def test_a_job_that_may_continue_with_fewer_nodes_outlives_the_loss_of_one(target: str) -> None:
    text = render(a_job(nodes=3, min_nodes=2), target)
    for rank in range(3):
        node = CONTROLLERS[target](text, rank)
        assert "--min-nodes 2 --max-restarts 3" in (" ".join(node.argv) or text)
    assert ("--kill-on-bad-exit=0 --no-kill" in text) is (target == "slurm")
    assert ("restartPolicy: None" in text) is (target == "leaderworkerset")


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_a_job_that_may_continue_with_fewer_nodes_is_complete_when_node_0_is(target: str) -> None:
    text = render(a_job(nodes=3, min_nodes=2, spares=1), target)
    assert re.search(r"maxFailedIndexes: 2\n", text)
    assert re.search(r"rules:\n\s+- succeededIndexes: ['\"]0['\"]\n", text)
    assert "succeededIndexes" not in render(a_job(nodes=3, min_nodes=3, spares=1), target)


def test_more_nodes_at_least_than_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="min_nodes 3 is more than nodes 2"):
        a_job(min_nodes=3)


@pytest.mark.parametrize("values", [{"nodes": 1}])
def test_spares_beside_one_node_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="spares 1 with 1 node"):
        a_job(spares=1, **values)
