"""Flags: over every variable, field by field; what they settle, and what they cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError, UsageError
from platform_launch.platforms import detect, doubt_count
from platform_launch.topology import Overrides

Node = Callable[..., Environment]
Refusal = Callable[..., TopologyError]

QUAD = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
TORCHRUN = {**QUAD, "TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
WHOLE_PLACE = Overrides(nnodes=1, node_rank=0, master_addr="127.0.0.1")
SBATCH_BODY = {
    "SLURM_JOB_ID": "9",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}


def test_a_flag_wins_over_its_variable_and_is_named_as_the_source(node: Node) -> None:
    overrides = Overrides(nnodes=4, node_rank=3, master_addr="10.0.0.9", master_port=29511, nproc_per_node=4)
    topology = detect(node(QUAD), overrides)
    assert (topology.nnodes, topology.node_rank, topology.master_addr) == (4, 3, "10.0.0.9")
    assert (topology.master_port, topology.nproc_per_node, topology.world_size) == (29511, 4, 16)
    assert topology.platform == "bare_master_quad"
    expected = "WORLD_SIZE and RANK count nodes: nothing else identifies a platform"
    assert topology.sources["platform"] == expected
    assert {source for name, source in topology.sources.items() if name != "platform"} == {
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--nproc-per-node",
    }


def test_a_flag_settles_a_variable_that_cannot_be_read(node: Node) -> None:
    topology = detect(node(QUAD, RANK="one", MASTER_PORT="auto"), Overrides(node_rank=1, master_port=29500))
    assert (topology.node_rank, topology.nnodes) == (1, 2)


@pytest.mark.parametrize(
    "variables",
    [
        {"TORCHX_JOB_ID": "x", "VC_TRAINER_0_HOSTS": "demo-0"},
        {"RAY_CLUSTER_NAME": "x", "FQ_RAY_IP": "head"},
        {"MODAL_TASK_ID": "ta-1"},
        {"DLROVER_MASTER_ADDR": "m:50001", "NODE_RANK": "1", "NODE_NUM": "2"},
        {"K_MPI_JOB_ROLE": "worker"},
        {"PET_NNODES": "1:2", "PET_RDZV_ENDPOINT": "w:1"},
        {"JOB_COMPLETION_INDEX": "1"},
        {"FLUX_URI": "local:///x"},
        {"WORLD_SIZE": "2"},
        SBATCH_BODY,
        {"SM_HOSTS": "no json"},
        {"CLUSTER_SPEC": "{"},
        {"SLURM_STEP_NODELIST": "a[1-", "SLURM_JOB_ID": "1"},
        {"VC_PS_HOSTS": "p", "VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "0", "HOSTNAME": "p"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_enough_flags_rescue_a_partial_platform(variables: dict[str, str], node: Node) -> None:
    topology = detect(node(variables), Overrides(nnodes=2, node_rank=1, master_addr="10.0.0.1"))
    assert (topology.nnodes, topology.node_rank, topology.master_addr) == (2, 1, "10.0.0.1")


def test_nnodes_1_alone_starts_one_node_from_a_batch_script(node: Node) -> None:
    topology = detect(node(SBATCH_BODY), Overrides(nnodes=1))
    assert (topology.nnodes, topology.node_rank, topology.hosts) == (1, 0, ())
    assert any("the list is not used" in warning for warning in topology.warnings)


def test_nnodes_1_alone_starts_one_node_where_nothing_is_known(node: Node) -> None:
    topology = detect(node({"MODAL_TASK_ID": "ta-1"}), Overrides(nnodes=1))
    assert (topology.node_rank, topology.master_addr, topology.master_port) == (0, "127.0.0.1", 29500)


def test_nnodes_1_on_node_1_asks_for_the_rank_too(node: Node, refusal: Refusal) -> None:
    error = refusal(node(QUAD), Overrides(nnodes=1))
    assert "out of range" in error.message
    assert "--node-rank" in error.hint


def test_flags_alone_are_a_platform_of_their_own(node: Node) -> None:
    topology = detect(node(), Overrides(nnodes=2, node_rank=1, master_addr="10.0.0.1"))
    assert (topology.platform, topology.master_port) == ("flags", 29500)


def test_some_flags_do_not_bypass_the_refusal_of_a_worker(node: Node, refusal: Refusal) -> None:
    error = refusal(node(TORCHRUN), Overrides(nnodes=1, node_rank=0))
    assert error.reading["level"] == "process"


def test_a_whole_place_by_flags_starts_inside_a_worker_with_nothing_inherited(node: Node) -> None:
    topology = detect(node(TORCHRUN), WHOLE_PLACE)
    assert (topology.platform, topology.nnodes, topology.master_port) == ("flags", 1, 29500)
    assert topology.sources["master_port"] == "default"
    assert any("torchrun" in warning for warning in topology.warnings)


def test_a_whole_place_by_flags_survives_counts_that_are_no_numbers(node: Node) -> None:
    variables = {"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_LOCAL_SIZE": "many"}
    assert detect(node(variables), WHOLE_PLACE).platform == "flags"


def test_a_node_rank_by_flag_against_the_host_list_is_a_warning(node: Node) -> None:
    variables = {"HOST_NUM": "2", "INDEX": "0", "CHIEF_IP": "a", "NODE_IP_LIST": "a,b", "LOCAL_IP": "b"}
    topology = detect(node(variables), Overrides(node_rank=0))
    assert any("index 1 of" in warning for warning in topology.warnings)


def test_an_address_by_flag_must_be_a_host(node: Node) -> None:
    with pytest.raises(UsageError, match="--master-addr='a b'"):
        detect(node(QUAD), Overrides(master_addr="a b"))


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("slrum", "did you mean slurm?"),
        ("Kubeflow-PyTorchJobs", "did you mean pytorchjob?"),
        ("nonsense", "platform-launch platforms"),
    ],
)
def test_an_unknown_platform_is_answered_with_the_nearest(node: Node, typed: str, advice: str) -> None:
    with pytest.raises(UsageError, match=f"unknown platform '{typed}'") as caught:
        detect(node(), Overrides(platform=typed))
    assert caught.value.hint.startswith(advice)


@pytest.mark.parametrize("typed", ["Bare_Master_Quad", "bare-master-quad"])
def test_a_platform_may_be_written_in_any_case_and_with_hyphens(node: Node, typed: str) -> None:
    assert detect(node(QUAD), Overrides(platform=typed)).platform == "bare_master_quad"


def test_a_named_platform_without_its_marks_says_which_variables_it_needs(
    node: Node, refusal: Refusal
) -> None:
    error = refusal(node(QUAD), Overrides(platform="skypilot"))
    assert "SKYPILOT_NODE_RANK" in error.message


def test_a_named_platform_wins_over_the_order(node: Node) -> None:
    variables = {**QUAD, "PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_MASTER_ADDR": "x"}
    assert detect(node(variables), Overrides(platform="bare_master_quad")).nnodes == 2


def test_the_local_platform_can_be_named_but_not_against_hints(node: Node, refusal: Refusal) -> None:
    assert detect(node({"SLURM_JOB_ID": "9"}), Overrides(platform="local")).nnodes == 1
    assert "WORLD_SIZE='2'" in refusal(node(QUAD), Overrides(platform="local")).message


def test_as_many_nodes_as_gpus_is_doubted(node: Node) -> None:
    eight = node(QUAD, WORLD_SIZE="8")
    assert any("number of GPUs" in warning for warning in doubt_count(detect(eight), 8).warnings)
    said = detect(eight, Overrides(nnodes=8))
    for topology in (doubt_count(detect(eight), 4), doubt_count(detect(eight), 0), doubt_count(said, 8)):
        assert not any("number of GPUs" in warning for warning in topology.warnings)


def test_several_nodes_by_flag_need_a_rank_too(node: Node) -> None:
    """Where the same line runs on every node, a rank of 0 by default would make every node the master."""
    with pytest.raises(TopologyError, match="no platform was detected that provides this node's") as refused:
        detect(node({}), Overrides(nnodes=2, master_addr="10.0.0.1"))
    assert "--node-rank" in refused.value.hint


def test_a_local_rank_beside_the_bare_names_is_doubted(node: Node) -> None:
    doubtful = detect(node({**QUAD, "LOCAL_RANK": "0"}))
    assert any("LOCAL_RANK is set" in warning for warning in doubtful.warnings)
    assert not any("LOCAL_RANK" in warning for warning in detect(node(QUAD)).warnings)


def test_spares_are_counted_among_the_nodes_that_a_platform_starts(node: Node) -> None:
    job = {**QUAD, "WORLD_SIZE": "3"}
    found = [detect(node({**job, "RANK": str(rank)}), Overrides(spares=1)) for rank in range(3)]
    assert [(one.nnodes, one.node_rank, one.is_spare) for one in found] == [
        (2, 0, False),
        (2, 1, False),
        (2, 2, True),
    ]
    assert found[2].sources["nnodes"] == "WORLD_SIZE minus --spares 1"


def test_nnodes_counts_the_nodes_that_train_beside_spares(node: Node) -> None:
    overrides = Overrides(nnodes=2, node_rank=2, master_addr="10.0.0.1", spares=1)
    assert detect(node({}), overrides).is_spare


def test_a_spare_takes_the_rank_that_it_was_given_whatever_the_host_list_says(node: Node) -> None:
    job = {**SBATCH_BODY, "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
    step = {**job, "SLURM_STEP_ID": "0", "SLURM_NODEID": "2", "SLURM_PROCID": "2", "SLURM_NTASKS": "3"}
    found = detect(node(step, hostname="n3"), Overrides(spares=1, stands_in_for=1))
    assert (found.nnodes, found.node_rank, found.master_addr) == (2, 1, "n1")
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("names", "spares", "least", "places", "why_not"),
    [
        ("n1,n2,n3,n4", 1, None, ("n1", "n4"), ""),
        ("n1,n2,n3,n4", 2, None, (), "so that both parts of a divided job could restart"),
        ("", 1, None, (), "does not list the nodes' hosts"),
        ("n1,n2,n3,n4", 0, 3, ("n1", "n4"), ""),
        ("n1,n2,n3,n4,n5", 1, 3, ("n1", "n5", "n4"), ""),
        (
            "n1,n2,n3,n4",
            0,
            2,
            (),
            "a restart needs only 2 of its 4 nodes, so that both parts of a divided job ",
        ),
    ],
)
def test_where_a_job_goes_without_node_0_follows_from_its_hosts(
    node: Node, names: str, spares: int, least: int | None, places: tuple[str, ...], why_not: str
) -> None:
    number = str(names.count(",") + 1 if names else 4)
    said = {"SKYPILOT_NUM_NODES": number, "SKYPILOT_NODE_RANK": "0", "MASTER_ADDR": "n1"}
    said |= {"SKYPILOT_NODE_IPS": names.replace(",", "\n")} if names else {}
    overrides = Overrides(spares=spares, min_nodes=least, master_addr="n1")
    found = detect(node(said, hostname="n1"), overrides)
    assert why_not in found.why_not_moved
    assert bool(why_not) is bool(found.why_not_moved)
    assert found.places == places
    moved = detect(node(said, hostname="n1"), replace(overrides, moved_to="n4"))
    assert (moved.node_rank, moved.master_addr) == (0, "n4")


def test_a_job_that_continues_with_fewer_nodes_counts_those(node: Node) -> None:
    job = {**QUAD, "WORLD_SIZE": "4", "RANK": "3"}
    overrides = Overrides(spares=1, min_nodes=2)
    assert detect(node(job), overrides).is_spare
    found = detect(node(job), replace(overrides, stands_in_for=1, remaining=2))
    assert (found.nnodes, found.node_rank, found.missing, found.launched) == (2, 1, 1, 3)
    assert found.sources["nnodes"] == "the remaining ones of 3"


@pytest.mark.parametrize("least", [0, 3])
def test_more_nodes_at_least_than_there_are_is_refused(node: Node, least: int) -> None:
    with pytest.raises(TopologyError, match=rf"--min-nodes {least} for 2 nodes \(WORLD_SIZE\): expected 1–2"):
        detect(node(QUAD), Overrides(min_nodes=least))


def test_spares_that_leave_one_node_are_refused(node: Node) -> None:
    with pytest.raises(TopologyError, match=r"--spares 1 leaves 1 of 2 nodes \(WORLD_SIZE\)"):
        detect(node(QUAD), Overrides(spares=1))
