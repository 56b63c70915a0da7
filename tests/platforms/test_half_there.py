"""A job whose variables are half there is refused: never another place in it, never one node in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.platforms import detect
from platform_launch.topology import Overrides, Topology

Node = Callable[..., Environment]
Refusal = Callable[..., TopologyError]
Vector = dict[str, Any]

MORE = json.loads((Path(__file__).parent / "more_vectors.json").read_text(encoding="utf-8"))["vectors"]
OF_SEVERAL_NODES = [
    vector
    for vector in MORE
    if vector["expect"].get("nnodes", 0) not in (None, 0, 1)
    and "error" not in vector["expect"]
    and "level" not in vector["expect"]
]
# What remains is whole in itself: Vertex has one variable, AIHC's and PAI's WORLD_SIZE count nodes unless
# NNODES and NPROC_PER_NODE show otherwise, and SageMaker's hosts are one group unless a group is named.
WHOLE_WITHOUT = {
    ("vertex", "CLUSTER_SPEC"),
    ("aihc", "PET_NNODES"),
    ("pai_dlc", "NNODES"),
    ("pai_dlc", "NPROC_PER_NODE"),
    ("sagemaker", "SM_RESOURCE_CONFIG"),
}


@pytest.mark.parametrize("vector", OF_SEVERAL_NODES, ids=lambda v: f"{v['dialect']}: {v['name']}")
def test_without_any_one_variable_the_place_is_the_same_or_refused(vector: Vector, node: Node) -> None:
    variables = vector["env"]
    whole = detect(node(variables, vector.get("files")))
    for dropped in variables:
        if (vector["dialect"], dropped) in WHOLE_WITHOUT:
            continue
        rest = node({name: value for name, value in variables.items() if name != dropped})
        topology = read(rest)
        if topology is not None:
            place = (topology.nnodes, topology.node_rank)
            assert place == (whole.nnodes, whole.node_rank), dropped


def read(environment: Environment) -> Topology | None:
    """Return the Topology, or None for a refusal."""
    try:
        return detect(environment)
    except TopologyError:
        return None


@pytest.mark.parametrize(
    "variables",
    [
        {"SKYPILOT_NUM_NODES": "2"},
        {"DSTACK_NODES_NUM": "2"},
        {"LEPTON_JOB_TOTAL_WORKERS": "2"},
        {"LWS_GROUP_SIZE": "2"},
        {"MLP_WORKER_NUM": "2"},
        {"ARNOLD_ID": "0"},
        {"MA_NUM_HOSTS": "2"},
        {"KUBEBRAIN_REPLICA": "0"},
        {"NGC_ARRAY_SIZE": "2"},
        {"AIHC_JOB_NAME": "x"},
        {"PADDLE_TRAINER_ID": "0"},
        {"PAI_TASK_ROLE_LIST": "worker"},
        {"VC_TASK_INDEX": "0"},
        {"VC_WORKER_NUM": "2"},
        {"SM_HOSTS": '["a","b"]'},
        {"TRAINING_JOB_ARN": "arn"},
        {"AWS_BATCH_JOB_NUM_NODES": "2"},
        {"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"},
        {"TPU_WORKER_ID": "0"},
        {"PET_NODE_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"MV2_COMM_WORLD_RANK": "0"},
        {"PMI_RANK": "0"},
        {"PALS_NODEID": "0"},
        {"FLUX_JOB_NNODES": "2"},
        {"SLURM_JOB_ID": "1"},
        {"SLURM_NODEID": "0"},
        {"LSB_JOBID": "1"},
        {"PBS_JOBID": "1.x"},
        {"PBS_NODEFILE": "/no/such/file"},
        {"COBALT_JOBID": "1"},
        {"JOB_COMPLETION_INDEX": "0"},
        {"RANK": "0"},
        {"NODE_RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"MASTER_ADDR": "10.0.0.1"},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "NNODES": "2"},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "RANK": "0"},
    ],
    ids=lambda variables: "+".join(variables),
)
def test_one_variable_of_a_job_is_never_read_as_one_node(variables: dict[str, str], node: Node) -> None:
    with pytest.raises(TopologyError) as caught:
        detect(node(variables))
    assert "--" in caught.value.hint


def test_the_batch_shell_of_a_heterogeneous_job_is_told_of_its_groups(node: Node, refusal: Refusal) -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODELIST": "n[1-2]"}
    assert "srun --ntasks-per-node=1" in refusal(node(batch)).hint
    hint = refusal(node({**batch, "SLURM_HET_SIZE": "2"})).hint
    assert "2 heterogeneous groups" in hint
    assert "srun --het-group=0 --ntasks-per-node=1" in hint
    assert "heterogeneous" not in refusal(node({**batch, "SLURM_HET_SIZE": "1"})).hint


def test_an_indexed_job_with_a_world_size_is_told_of_nnodes(node: Node, refusal: Refusal) -> None:
    """WORLD_SIZE alone says nothing there: who writes it by hand may mean processes."""
    error = refusal(node({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "demo-0.demo"}))
    assert error.hint.startswith("WORLD_SIZE='2' is not read here, since it may count processes: set NNODES")


def test_two_containers_of_modal_are_not_strangers_to_each_other(node: Node) -> None:
    """The roll call turns nodes of another job away; this variable differs between the nodes of one."""
    place = Overrides(nnodes=2, node_rank=1, master_addr="10.0.0.1")
    assert detect(node({"MODAL_TASK_ID": "ta-1"}), place).job_id is None


def test_the_ordinal_of_a_host_name_alone_is_one_node_with_a_warning(node: Node) -> None:
    topology = detect(node({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "web-1"}))
    assert topology.nnodes == 1
    assert any("StatefulSet" in warning for warning in topology.warnings)


def test_a_service_link_named_master_in_any_dialect_is_a_warning(node: Node) -> None:
    variables = {
        "LWS_LEADER_ADDRESS": "demo-0.demo.default",
        "LWS_GROUP_SIZE": "2",
        "LWS_WORKER_INDEX": "1",
        "MASTER_PORT": "tcp://10.96.3.4:29500",
    }
    topology = detect(node(variables))
    assert topology.master_port == 29500
    assert [warning for warning in topology.warnings if "MASTER_PORT is a Kubernetes service link" in warning]


def test_an_mpi_array_of_ngc_is_a_warning(node: Node) -> None:
    variables = {
        "NGC_ARRAY_SIZE": "2",
        "NGC_ARRAY_INDEX": "0",
        "NGC_MASTER_ADDR": "a",
        "NGC_ARRAY_TYPE": "MPI",
    }
    assert any("NGC_ARRAY_TYPE=MPI" in warning for warning in detect(node(variables)).warnings)


PLAIN_JOB = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-x7k2p"}


def test_a_pod_without_a_word_of_how_many_is_one_node_and_told_so(node: Node) -> None:
    (warning,) = detect(node(PLAIN_JOB)).warnings
    for named in ("completionMode: Indexed", "platform-launch job kubernetes", "--nnodes 1", "train-x7k2p"):
        assert named in warning


def test_a_pod_that_is_said_to_be_one_node_is_not_doubted(node: Node) -> None:
    assert detect(node(PLAIN_JOB, NNODES="1")).warnings == ()
    assert detect(node(PLAIN_JOB), Overrides(nnodes=1)).warnings == ()


def test_a_plain_job_of_two_is_told_of_indexed_jobs(node: Node, refusal: Refusal) -> None:
    error = refusal(node(PLAIN_JOB, NNODES="2"))
    assert "completionMode: Indexed" in error.hint
