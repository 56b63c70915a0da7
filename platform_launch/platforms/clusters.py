"""Managed clusters with one peculiarity each: ModelArts, Lepton, Determined AI, Baidu's two, and ProcGuard.

Sources: support.huaweicloud.com develop-modelarts-0104; docs.nvidia.com/dgx-cloud/lepton predefined-env-vars;
determined-ai/determined harness _info.py, launch/torch_distributed.py; cloud.baidu.com/doc/AIHC/s/mm346i20k;
PaddlePaddle/Paddle distributed/cloud_utils.py; platform_launch/procguard/api/ranks.py, agent/variables.py.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced, parse_integer
from platform_launch.errors import TopologyError, shown
from platform_launch.hostlist import parse_host, position, refuse_repeats
from platform_launch.platforms.aws import parse_json
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase

_RENDEZVOUS_FILE = "/run/determined/info/rendezvous.json"


def _refine_modelarts(reading: Reading, environment: Environment) -> None:  # noqa: ARG001
    """On one node VC_WORKER_HOSTS is absent and VC_TASK_INDEX means nothing, as documented."""
    if reading.nnodes and reading.nnodes.value == 1:
        reading.node_rank = Sourced(0, Phrase("the only node"))
        reading.problems.pop("node_rank", None)


def _refine_lepton(reading: Reading, environment: Environment) -> None:
    """Worker 0's name is composed as the vendor's own script does it."""
    name = environment.text("LEPTON_JOB_NAME")
    prefix = environment.text("LEPTON_JOB_SERVICE_PREFIX") or name
    subdomain = environment.text("LEPTON_SUBDOMAIN")
    workspace = environment.text("LEPTON_WORKSPACE_ID")
    older = environment.text("LEPTON_JOB_WORKER_PREFIX")
    if prefix and workspace and (subdomain or name):
        domain = subdomain.value if subdomain else f"{name.value if name else ''}-job-svc"
        address = f"{prefix.value}-0.{domain}.ws-{workspace.value}.svc.cluster.local"
    elif older and subdomain:
        address = f"{older.value}-0.{subdomain.value}"
    else:
        reading.missing.setdefault("master_addr", "LEPTON_WORKSPACE_ID or LEPTON_JOB_NAME")
        return
    reading.compose_master_addr(address, "LEPTON_*", "composed from LEPTON_*")


def _refine_determined(reading: Reading, environment: Environment) -> None:
    """DET_MASTER_* is the control plane; the nodes' addresses are in a file the agent writes."""
    reading.nproc_per_node = reading.attempt("nproc_per_node", lambda: _slots(environment), "")
    if reading.restart_count:  # runs of the trial, the first of which is no restart
        reading.restart_count = Sourced(max(0, reading.restart_count.value - 1), "DET_TRIAL_RUN_ID - 1")
    content = environment.read_file(_RENDEZVOUS_FILE)
    if content is None:
        reading.missing.update(dict.fromkeys(("nnodes", "node_rank", "master_addr"), _RENDEZVOUS_FILE))
        return
    info = reading.attempt("nnodes", lambda: parse_json(Sourced(content, _RENDEZVOUS_FILE)), "")
    addresses = info.get("container_addrs") if isinstance(info, dict) else None
    if not isinstance(addresses, list) or not addresses or not isinstance(info, dict):
        reading.refuse(
            "nnodes",
            Phrase(
                "{file}: expected an object with a list container_addrs",
                file=_RENDEZVOUS_FILE,
            ),
        )
        return
    reading.hosts = reading.attempt("hosts", lambda: _addresses(addresses), "")
    if reading.hosts:
        reading.nnodes = Sourced(len(addresses), Phrase("container_addrs of {file}", file=_RENDEZVOUS_FILE))
        reading.master_addr = Sourced(
            reading.hosts.value[0],
            Phrase("first of container_addrs of {file}", file=_RENDEZVOUS_FILE),
        )
    rank = str(info.get("container_rank", ""))
    source = Phrase("container_rank of {file}", file=_RENDEZVOUS_FILE)
    reading.node_rank = reading.attempt(
        "node_rank", lambda: Sourced(parse_integer(rank, source), source), source
    )


def _slots(environment: Environment) -> Sourced[int] | None:
    text = environment.text("DET_SLOT_IDS")
    if text is None:
        return None
    slots = parse_json(text)
    if not isinstance(slots, list):
        raise TopologyError(Phrase("DET_SLOT_IDS={text}: expected a JSON list", text=shown(text.value)))
    return Sourced(len(slots), Phrase("length of {source}", source=text.source)) if slots else None


def _addresses(addresses: list[object]) -> Sourced[tuple[str, ...]]:
    hosts = [str(address) for address in addresses]
    refuse_repeats(hosts, _RENDEZVOUS_FILE)
    return Sourced(tuple(parse_host(host, _RENDEZVOUS_FILE) for host in hosts), _RENDEZVOUS_FILE)


def _refine_aihc(reading: Reading, environment: Environment) -> None:
    name = environment.text("AIHC_JOB_NAME")
    if reading.master_addr is None and "master_addr" not in reading.problems and name:
        reading.compose_master_addr(f"{name.value}-master-0", name.source)


def _refine_paddlecloud(reading: Reading, environment: Environment) -> None:
    """PADDLE_TRAINERS lists nodes, always; the other two count processes inside a Paddle worker."""
    count = "PADDLE_TRAINERS_NUM"
    trainers = reading.attempt("nnodes", lambda: environment.integer(count, 1), "PADDLE_TRAINERS")
    if reading.hosts is None:
        reading.missing["nnodes"] = "PADDLE_TRAINERS"
        return
    nnodes = len(reading.hosts.value)
    reading.nnodes = Sourced(nnodes, Phrase("hosts of {source}", source=reading.hosts.source))
    if trainers is None or trainers.value == nnodes:
        return
    if trainers.value % nnodes:
        reading.refuse(
            "nnodes",
            Phrase(
                "PADDLE_TRAINERS lists {nnodes} hosts, but {count}={trainers}",
                nnodes=nnodes,
                count=count,
                trainers=trainers.value,
            ),
        )
        return
    rank = reading.node_rank.value if reading.node_rank else None
    place = position(reading.hosts.value, environment.names_of_this_host() | reading.own_names)
    reading.node_rank = None if place is None else Sourced(place, "place of POD_IP in PADDLE_TRAINERS")
    reading.mark_process(
        Phrase(
            "{count}={trainers} on {nnodes} hosts: this is a process that Paddle's launcher started, "
            "but this command starts a node's processes itself and must run once per node",
            count=count,
            trainers=trainers.value,
            nnodes=nnodes,
        ),
        "start platform-launch in place of paddle.distributed.launch",
        rank=rank,
        local_rank=None,
        world_size=trainers.value,
    )


def _refine_procguard(reading: Reading, environment: Environment) -> None:
    """A worker that is a node's launcher has no LOCAL_RANK; several processes of a node cannot launch it."""
    try:
        rank, local_rank, local_size, world_size = (
            number.value if (number := environment.integer(name)) else None
            for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
        )
    except TopologyError as error:
        reading.add_problem("node_rank", error)
        return
    if local_size is not None and local_size > 1:
        reading.mark_process(
            Phrase(
                "LOCAL_WORLD_SIZE={local_size} means that this worker is one of several processes on "
                "this node",
                local_size=local_size,
            ),
            "set the kind of the group to one launcher per node, with one worker per node; or use the "
            "training itself as the command",
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
        )


MODELARTS = Dialect(
    name="modelarts",
    title="Huawei ModelArts training",
    marks=(("MA_NUM_HOSTS",),),
    nnodes=("MA_NUM_HOSTS",),
    node_rank=("VC_TASK_INDEX",),
    nproc_per_node=("MA_NUM_GPUS",),
    accelerators=("MA_NUM_GPUS",),
    hosts=("VC_WORKER_HOSTS",),
    job_id=("MA_VJ_NAME",),
    same_nnodes=("VC_WORKER_NUM",),
    own_names=("MA_CURRENT_IP",),
    first_host_is_master=True,
    refine=_refine_modelarts,
)

LEPTON = Dialect(
    name="lepton",
    title="NVIDIA DGX Cloud Lepton",
    marks=(("LEPTON_JOB_TOTAL_WORKERS",), ("LEPTON_JOB_WORKER_INDEX",)),
    nnodes=("LEPTON_JOB_TOTAL_WORKERS",),
    node_rank=("LEPTON_JOB_WORKER_INDEX",),
    master_addr=("MASTER_ADDR",),  # the vendor's helper script exports the same; composed below otherwise
    nproc_per_node=("LEPTON_RESOURCE_ACCELERATOR_NUM",),
    accelerators=("LEPTON_RESOURCE_ACCELERATOR_NUM",),
    job_id=("LEPTON_JOB_NAME",),
    restart_count=("LEPTON_JOB_FAILURE_COUNT",),
    refine=_refine_lepton,
)

DETERMINED = Dialect(
    name="determined",
    title="Determined AI / HPE MLDE",
    marks=(("DET_ALLOCATION_ID",), ("DET_TASK_ID", "DET_SLOT_IDS")),
    master_port=("C10D_PORT",),
    job_id=("DET_TASK_ID", "DET_ALLOCATION_ID"),
    restart_count=("DET_TRIAL_RUN_ID",),
    port=Sourced(29400, "Determined's default"),
    hint="start it through Determined's launch layer, which writes the rendezvous file",
    refine=_refine_determined,
)

AIHC = Dialect(
    name="aihc",
    title="Baidu AIHC (Baige)",
    marks=(("AIHC_JOB_NAME",),),
    # A clone of PyTorchJob: if PET_NNODES is set, WORLD_SIZE may count processes.
    nnodes=("PET_NNODES", "WORLD_SIZE"),
    node_rank=("PET_NODE_RANK", "RANK"),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("AIHC_JOB_NAME",),
    same_node_rank=("RANK",),
    port=Sourced(23456, "AIHC's default"),
    refine=_refine_aihc,
)

PADDLECLOUD = Dialect(
    name="paddlecloud",
    title="Baidu PaddleCloud",
    marks=(("PADDLE_TRAINERS",), ("PADDLE_TRAINER_ID",)),
    node_rank=("PADDLE_TRAINER_ID",),
    master_port=("PADDLE_PORT",),
    nproc_per_node=("TRAINER_PORTS_NUM",),
    hosts=("PADDLE_TRAINERS",),
    job_id=("PADDLE_JOB_NAME", "PADDLE_ELASTIC_JOB_ID"),
    own_names=("POD_IP",),
    first_host_is_master=True,
    port=Sourced(6170, "Paddle's default"),
    refine=_refine_paddlecloud,
)

PROCGUARD = Dialect(
    name="procguard",
    title="ProcGuard (this project)",
    marks=(("PROCGUARD_RUN", "NNODES", "NODE_RANK"),),
    nnodes=("NNODES",),
    node_rank=("NODE_RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    refine=_refine_procguard,
)
