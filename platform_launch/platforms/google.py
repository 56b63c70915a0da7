"""Google: Vertex AI custom training and GKE TPU slices.

Sources: Vertex AI "Distributed training" (CLUSTER_SPEC); jax cloud_tpu_cluster.py (port 8476); lws
pkg/utils/accelerators/tpu.go.
"""

from __future__ import annotations

from math import prod

from platform_launch.environment import Environment, Sourced, parse_integer
from platform_launch.errors import TopologyError, shown
from platform_launch.hostlist import refuse_repeats, split_host_port
from platform_launch.platforms.aws import parse_json
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase, counted, either

_SPEC = "CLUSTER_SPEC"
_TRAINING_POOLS = ("workerpool0", "workerpool1")  # 2 are parameter servers, 3 is the evaluator


def _refine_vertex(reading: Reading, environment: Environment) -> None:
    """Pools are roles: task.index counts from 0 in each. The ``:2222`` behind a host is a service's port."""
    spec = reading.attempt("nnodes", lambda: _cluster_spec(environment), _SPEC)
    if spec is None:
        return
    pools = reading.attempt("nnodes", lambda: [_pool(spec, name) for name in _TRAINING_POOLS], _SPEC)
    if pools is None:
        return
    hosts = tuple(host for pool in pools for host in pool)
    reading.hosts = Sourced(hosts, f"{_SPEC} {' + '.join(_TRAINING_POOLS)}")
    reading.nnodes = Sourced(len(hosts), Phrase("hosts of {spec}", spec=_SPEC))
    reading.master_addr = Sourced(hosts[0], f"{_SPEC} workerpool0[0]")
    reading.node_rank = reading.attempt(
        "node_rank", lambda: _vertex_rank(spec, [len(pool) for pool in pools]), f"{_SPEC} task"
    )


def _cluster_spec(environment: Environment) -> dict[str, object] | None:
    text = environment.text(_SPEC)
    if text is None:
        return None
    spec = parse_json(text)
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(cluster, dict) or not cluster.get("workerpool0"):
        raise TopologyError(
            Phrase(
                "{spec}={text}: expected a JSON object with cluster.workerpool0",
                spec=_SPEC,
                text=shown(text.value),
            )
        )
    return spec


def _pool(spec: dict[str, object], name: str) -> list[str]:
    cluster = spec["cluster"]
    items = cluster.get(name) or [] if isinstance(cluster, dict) else []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise TopologyError(
            Phrase(
                "{spec}: cluster.{name} is {items}: expected a list of hosts",
                spec=_SPEC,
                name=name,
                items=shown(str(items)),
            )
        )
    refuse_repeats(items, _SPEC)
    return [split_host_port(item, _SPEC)[0] for item in items]


def _vertex_rank(spec: dict[str, object], counts: list[int]) -> Sourced[int] | None:
    task = spec.get("task")
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        return None
    pool = str(task["type"])
    index = parse_integer(str(task["index"]), f"{_SPEC} task.index")
    if pool not in _TRAINING_POOLS:
        raise TopologyError(
            Phrase(
                "{spec} task.type={pool} is not a training pool: expected {pools}",
                spec=_SPEC,
                pool=shown(pool),
                pools=either(_TRAINING_POOLS),
            ),
            "pools 2 and 3 (parameter servers, evaluator) do not join the training: start this command in "
            "pools 0 and 1 only",
        )
    place = _TRAINING_POOLS.index(pool)
    if index >= counts[place]:
        raise TopologyError(
            Phrase(
                "{spec} task.index={index}, but {pool} has {hosts}",
                spec=_SPEC,
                index=index,
                pool=pool,
                hosts=counted(counts[place], "host"),
            ),
            "correct the job, or pass --node-rank",
        )
    return Sourced(sum(counts[:place]) + index, f"{_SPEC} task {pool}/{index}")


def _refine_tpu(reading: Reading, environment: Environment) -> None:
    if reading.hosts is None:
        reading.missing["nnodes"] = "TPU_WORKER_HOSTNAMES"
    bounds = environment.text("TPU_CHIPS_PER_HOST_BOUNDS")
    if bounds:
        chips = reading.attempt(
            "nproc_per_node",
            lambda: prod(parse_integer(side, bounds.source, 1) for side in bounds.value.split(",")),
            "",
        )
        reading.nproc_per_node = (
            Sourced(chips, Phrase("product of {source}", source=bounds.source)) if chips else None
        )
    slices = reading.attempt("nnodes", lambda: environment.integer("MEGASCALE_NUM_SLICES"), "")
    if slices and slices.value > 1:
        reading.refuse(
            "nnodes",
            Phrase(
                "MEGASCALE_NUM_SLICES={slices}: TPU_WORKER_ID counts within one slice, so no variable "
                "gives this node's rank over all slices",
                slices=slices.value,
            ),
            "pass --nnodes --node-rank --master-addr for the whole job",
        )


VERTEX = Dialect(
    name="vertex",
    title="Google Vertex AI custom training",
    marks=((_SPEC,),),
    nproc_per_node=("NPROC_PER_NODE",),
    job_id=("CLOUD_ML_JOB_ID",),
    refine=_refine_vertex,
)

GKE_TPU = Dialect(
    name="gke_tpu",
    title="GKE TPU slice",
    marks=(("TPU_WORKER_HOSTNAMES",), ("TPU_WORKER_ID",)),
    node_rank=("TPU_WORKER_ID",),
    hosts=("TPU_WORKER_HOSTNAMES",),
    job_id=("TPU_NAME",),
    first_host_is_master=True,
    hosts_count_nodes=True,
    port=Sourced(8476, "the TPU coordinator's port"),
    refine=_refine_tpu,
)
