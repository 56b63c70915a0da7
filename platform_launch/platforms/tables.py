"""Platforms that are a table and nothing more: every field is one variable, and all count nodes.

Sources are next to each table; grade B means public users of the platform, since the producer is closed.
"""

from __future__ import annotations

from platform_launch.environment import Environment
from platform_launch.platforms.bare import mark_process_names
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase

# Brain++ submit scripts and a public container dump. MASTER_ADDR comes with DISTRIBUTED_JOB=true only.
# The names are exact: an etcd replacement called KubeBrain uses KUBEBRAIN_REPLICAS and others.
KUBEBRAIN = Dialect(
    name="kubebrain",
    title="KubeBrain / Megvii Brain++",
    grade="B",
    marks=tuple(
        (f"{prefix}_REPLICA{suffix}",)
        for prefix in ("KUBEBRAIN", "RLAUNCH", "RJOB")
        for suffix in ("", "_TOTAL")
    ),
    nnodes=("KUBEBRAIN_REPLICA_TOTAL", "RLAUNCH_REPLICA_TOTAL", "RJOB_REPLICA_TOTAL"),
    node_rank=("KUBEBRAIN_REPLICA", "RLAUNCH_REPLICA", "RJOB_REPLICA"),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("PROC_PER_NODE", "GPU_COUNT"),
    accelerators=("GPU_COUNT",),
    job_id=("JOB_ID", "KUBEBRAIN_RJOB_NAME"),
    same_nnodes=("NODE_COUNT",),
    same_node_rank=("NODE_RANK", "RJOB_TASK_INDEX"),
    address_hint="submit with -e DISTRIBUTED_JOB=true, which sets MASTER_ADDR",
)


def _is_dlc_address(environment: Environment) -> bool:
    names = ("WORLD_SIZE", "RANK")
    return environment.get("MASTER_ADDR", "").startswith("dlc") and all(name in environment for name in names)


# alibabacloud.com/help/en/pai/general-environment-variables. No documented brand variable: weak marks.
PAI_DLC = Dialect(
    name="pai_dlc",
    title="Alibaba PAI-DLC",
    marks=tuple(
        ("MASTER_ADDR", "WORLD_SIZE", "RANK", mark)
        for mark in (
            "NPROC_PER_NODE",
            "KUBERNETES_CONTAINER_RESOURCE_GPU",
            "DLC_JOB_ID",
            "PAI_WORKSPACE_ID",
        )
    ),
    also=_is_dlc_address,
    also_words=Phrase("WORLD_SIZE and RANK and MASTER_ADDR=dlc…"),
    nnodes=("WORLD_SIZE",),
    node_rank=("RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE", "KUBERNETES_CONTAINER_RESOURCE_GPU"),
    accelerators=("KUBERNETES_CONTAINER_RESOURCE_GPU",),
    job_id=("DLC_JOB_ID",),
    same_node_rank=("NODE_RANK",),
    refine=mark_process_names,
)

# Public users state that the platform injects them; bare WORLD_SIZE and RANK are inconsistent there.
SENSECORE = Dialect(
    name="sensecore",
    title="SenseTime SenseCore ACP",
    grade="B",
    marks=(("SENSECORE_PYTORCH_NNODES",), ("SENSECORE_PYTORCH_NODE_RANK",)),
    nnodes=("SENSECORE_PYTORCH_NNODES",),
    node_rank=("SENSECORE_PYTORCH_NODE_RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("SENSECORE_ACCELERATE_DEVICE_COUNT",),
    accelerators=("SENSECORE_ACCELERATE_DEVICE_COUNT",),
)

# tencentcloud.com/document/product/1141/69605. The number behind a host in NODE_LIST counts GPUs.
TI_ONE = Dialect(
    name="ti_one",
    title="Tencent Cloud TI-ONE",
    marks=(("NODE_LIST", "INDEX"),),
    nnodes=("WORLD_SIZE",),
    node_rank=("RANK", "INDEX"),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("GPU_NUM_PER_NODE",),
    accelerators=("GPU_NUM_PER_NODE",),
    hosts=("NODE_LIST",),
    same_node_rank=("INDEX",),
    hosts_count_nodes=True,
    hint="use the DDP training mode: MPI and PS modes set only NODE_LIST and INDEX",
)

# A consumer's README: NODE_NUM is the total number of GPUs here, so it is never read.
TAIJI = Dialect(
    name="taiji",
    title="Tencent Taiji / Jizhi",
    grade="B",
    marks=tuple((number, mark) for number in ("HOST_NUM", "INDEX") for mark in ("CHIEF_IP", "NODE_IP_LIST")),
    nnodes=("HOST_NUM",),
    node_rank=("INDEX",),
    master_addr=("CHIEF_IP",),
    nproc_per_node=("HOST_GPU_NUM",),
    accelerators=("HOST_GPU_NUM",),
    hosts=("NODE_IP_LIST",),
    own_names=("LOCAL_IP",),
)

# docs.skypilot.co, distributed jobs. The list is separated by newlines.
SKYPILOT = Dialect(
    name="skypilot",
    title="SkyPilot",
    marks=(("SKYPILOT_NODE_RANK",), ("SKYPILOT_NUM_NODES",), ("SKYPILOT_NODE_IPS",)),
    nnodes=("SKYPILOT_NUM_NODES",),
    node_rank=("SKYPILOT_NODE_RANK",),
    nproc_per_node=("SKYPILOT_NUM_GPUS_PER_NODE",),
    accelerators=("SKYPILOT_NUM_GPUS_PER_NODE",),
    hosts=("SKYPILOT_NODE_IPS",),
    job_id=("SKYPILOT_TASK_ID", "SKYPILOT_MANAGED_JOB_ID"),
    first_host_is_master=True,
)

# dstack's runner and distributed-task examples
DSTACK = Dialect(
    name="dstack",
    title="dstack",
    marks=(("DSTACK_NODE_RANK",), ("DSTACK_NODES_NUM",), ("DSTACK_MASTER_NODE_IP",)),
    nnodes=("DSTACK_NODES_NUM",),
    node_rank=("DSTACK_NODE_RANK",),
    master_addr=("DSTACK_MASTER_NODE_IP",),
    nproc_per_node=("DSTACK_GPUS_PER_NODE",),
    accelerators=("DSTACK_GPUS_PER_NODE",),
    hosts=("DSTACK_NODES_IPS",),
    job_id=("DSTACK_RUN_NAME",),
)


def _warn_of_mpi_array(reading: Reading, environment: Environment) -> None:
    if environment.get("NGC_ARRAY_TYPE", "").strip().upper() == "MPI":
        reading.warnings.append(
            "NGC_ARRAY_TYPE=MPI runs the command on replica 0 only: use a PYTORCH array, or start this "
            "command with bcprun, once per node"
        )


# Public users of NGC_ARRAY_INDEX; some clusters export NGC_MULTINODE_RANK instead.
NGC = Dialect(
    name="ngc",
    title="NVIDIA Base Command Platform (NGC)",
    grade="B",
    marks=(("NGC_ARRAY_SIZE",), ("NGC_ARRAY_INDEX",), ("NGC_MASTER_ADDR",)),
    nnodes=("NGC_ARRAY_SIZE",),
    node_rank=("NGC_ARRAY_INDEX", "NGC_MULTINODE_RANK"),
    master_addr=("NGC_MASTER_ADDR",),
    nproc_per_node=("NGC_GPUS_PER_NODE",),
    accelerators=("NGC_GPUS_PER_NODE",),
    job_id=("NGC_JOB_ID",),
    refine=_warn_of_mpi_array,
)

# dlrover's constants. DLROVER_MASTER_ADDR is the job master's service, never the rendezvous of training.
DLROVER = Dialect(
    name="dlrover",
    title="DLRover ElasticJob",
    grade="B",
    marks=(("DLROVER_MASTER_ADDR",),),
    nnodes=("NODE_NUM", "WORKER_NUM"),
    node_rank=("NODE_RANK", "WORKER_RANK", "WORKER_ID"),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    restart_count=("RELAUNCHED_POD",),
    port=None,
    address_hint="DLRover decides the rendezvous itself (dlrover-run)",
)

# kuberay constant.go. Nodes join and leave and have no index; RAY_ADDRESS is the Ray head.
RAY = Dialect(
    name="ray",
    title="Ray / KubeRay",
    marks=(
        ("RAY_CLUSTER_NAME",),
        ("FQ_RAY_IP",),
        ("KUBERAY_GEN_RAY_START_CMD",),
        ("RAY_NODE_TYPE_NAME",),
        ("RAY_IP", "RAY_PORT"),
    ),
    job_id=("RAY_CLUSTER_NAME",),
    port=None,
    hint="a Ray cluster has no node ranks: use Ray Train",
)

# modal-client _clustered_functions.py: size, rank and addresses come from an API call. MODAL_TASK_ID is the
# container's own, and no variable is the cluster's (modal.com/docs/guide/environment_variables): no job id.
MODAL = Dialect(
    name="modal",
    title="Modal",
    marks=(("MODAL_TASK_ID",),),
    port=None,
    hint="in a clustered function take them from Modal's cluster info",
)
