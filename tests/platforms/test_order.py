"""The order of PLATFORMS decides between dialects whose marks meet in one environment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from platform_launch.environment import Environment
from platform_launch.platforms import LOCAL, PLATFORMS, Dialect, detect

Node = Callable[..., Environment]

ORDER = tuple(
    """
torchrun procguard torchx skypilot dstack lepton determined sagemaker aws_batch azureml vertex modelarts
volcengine_mlp arnold sensecore kubebrain aihc ti_one taiji paddlecloud ngc openpai lws gke_tpu runai
trainer_v2 pytorchjob volcano mvapich openmpi flux pals slurm lsf cobalt pbs hydra pai_dlc mosaicml
dlrover lightning bare_master_quad mpijob jobset indexed_job ray modal downward
""".split()  # noqa: SIM905 - a table reads better
)


def test_dialects_are_tried_in_the_documented_order() -> None:
    assert tuple(dialect.name for dialect in PLATFORMS) == ORDER


@pytest.mark.parametrize("dialect", PLATFORMS, ids=lambda dialect: dialect.name)
def test_every_dialect_says_what_it_is_and_why_it_stands_where_it_stands(dialect: Dialect) -> None:
    assert dialect.title
    assert dialect.place
    assert dialect.grade in ("A", "B")
    assert dialect.recognised_by


def test_marks_in_words_name_the_variables_that_must_be_absent() -> None:
    lightning = next(dialect for dialect in PLATFORMS if dialect.name == "lightning")
    assert lightning.recognised_by == "NODE_RANK and MASTER_ADDR, without WORLD_SIZE"


@pytest.mark.parametrize("dialect", PLATFORMS, ids=lambda dialect: dialect.name)
def test_each_group_of_marks_alone_identifies_its_platform(dialect: Dialect, node: Node) -> None:
    for group in dialect.marks:
        environment = node(dict.fromkeys((name.replace("*", "X") for name in group), "1"))
        assert dialect.matches(environment), group


def test_no_mark_at_all_is_one_node(node: Node) -> None:
    topology = detect(node({"PATH": "/bin"}))
    assert (topology.platform, topology.nnodes, topology.master_addr) == (LOCAL.name, 1, "127.0.0.1")


SLURM_STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
QUAD = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
PET = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "10.0.0.1",
    "PET_MASTER_PORT": "23456",
    "PET_NPROC_PER_NODE": "8",
}


@pytest.mark.parametrize(
    ("inner", "outer", "winner"),
    [
        (
            {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "a\nb", "SKYPILOT_NUM_NODES": "2"},
            PET,
            "skypilot",
        ),
        ({"AIHC_JOB_NAME": "x"}, QUAD, "aihc"),
        (PET, {"VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "0"}, "trainer_v2"),
        ({**PET, **QUAD}, {"VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "0"}, "pytorchjob"),
        (PET, {"JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "trainer_v2"),
        (SLURM_STEP, {**QUAD, "PMI_RANK": "0", "PMI_SIZE": "2"}, "slurm"),
        (SLURM_STEP, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "RAY_CLUSTER_NAME": "x"}, "slurm"),
        (QUAD, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "1"}, "bare_master_quad"),
        ({**QUAD, "NPROC_PER_NODE": "8"}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "pai_dlc"),
    ],
)
def test_the_more_specific_of_two_dialects_wins(
    inner: dict[str, str], outer: dict[str, str], winner: str, node: Node
) -> None:
    assert detect(node({**outer, **inner})).platform == winner
