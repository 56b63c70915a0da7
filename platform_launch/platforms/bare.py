"""Names without a brand: the four bare names, Lightning's, Composer's, and torchrun's in a worker.

The four bare names mean nodes: WORLD_SIZE counts nodes and RANK is this node's rank, as the platforms set
them for which this launcher was written. Evidence that they count processes leads to a refusal. Sources:
training-operator v1.4–v1.6; Lightning fabric/plugins/environments; mosaicml/composer cli/launcher.py; torch
local_elastic_agent.py.
"""

from __future__ import annotations

import dataclasses

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError
from platform_launch.platforms import workers
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import USER_NNODES, Reading
from platform_launch.text import Phrase
from platform_launch.topology import Topology

READ_AS_NODES = Phrase("WORLD_SIZE and RANK count nodes: nothing else identifies a platform")


def _refine_quad(reading: Reading, environment: Environment) -> None:
    reading.evidence = READ_AS_NODES
    mark_process_names(reading, environment)


def mark_process_names(reading: Reading, environment: Environment) -> None:
    """Mark the reading as that of a process if LOCAL_RANK shows several processes on this node."""
    try:
        _mark_process_names(reading, environment)
    except TopologyError as error:
        reading.add_problem("node_rank", error)


def _mark_process_names(reading: Reading, environment: Environment) -> None:
    """LOCAL_RANK=0 alone proves nothing. Raises TopologyError if one of the names is not a number."""
    local_rank = environment.integer("LOCAL_RANK")
    local_size = environment.integer("LOCAL_WORLD_SIZE")
    rank = environment.integer("RANK")
    if local_rank is None:
        return
    fits = local_size and local_size.value > 1 and rank and rank.value % local_size.value == local_rank.value
    if local_rank.value == 0 and not fits:
        if reading.nnodes and reading.nnodes.value > 1:
            reading.warnings.append(
                Phrase(
                    "LOCAL_RANK is set: if WORLD_SIZE={nnodes} counts processes, set it to the number of "
                    "nodes and RANK to this node's, or pass --nnodes and --node-rank",
                    nnodes=reading.nnodes.value,
                )
            )
        return
    size = environment.integer("WORLD_SIZE")
    per_node = local_size.value if fits and local_size else None
    if per_node:
        reading.nproc_per_node = local_size
    if size:  # then the table read WORLD_SIZE and RANK as nodes, which they are not
        reading.nnodes = (
            Sourced(size.value // per_node, "WORLD_SIZE ÷ LOCAL_WORLD_SIZE") if per_node else None
        )
        reading.node_rank = (
            Sourced(rank.value // per_node, "RANK ÷ LOCAL_WORLD_SIZE") if per_node and rank else None
        )
    of_how_many = Phrase(" of LOCAL_WORLD_SIZE={per_node}", per_node=per_node) if per_node else ""
    reading.mark_process(
        Phrase(
            "LOCAL_RANK={local_rank}{of_how_many} means that this is one of several processes on "
            "this node, and that WORLD_SIZE and RANK count processes",
            local_rank=local_rank.value,
            of_how_many=of_how_many,
        ),
        "start this command once per node with WORLD_SIZE (nodes) and RANK (this node), without LOCAL_RANK; "
        "or pass --nnodes --node-rank --master-addr",
        rank=rank.value if rank else None,
        local_rank=local_rank.value,
        world_size=size.value if size else None,
    )


def doubt_count(topology: Topology, gpus: int) -> Topology:
    """Warn if WORLD_SIZE is exactly this node's number of GPUs: it may count processes after all."""
    if gpus <= 1 or topology.nnodes != gpus or topology.sources.get("nnodes") != "WORLD_SIZE":
        return topology
    doubt = Phrase(
        "WORLD_SIZE={nnodes} is also the number of GPUs of this node: if it counts processes, "
        "set it to the number of nodes, or pass --nnodes",
        nnodes=topology.nnodes,
    )
    return dataclasses.replace(topology, warnings=(*topology.warnings, doubt))


def _refine_mosaicml(reading: Reading, environment: Environment) -> None:
    """WORLD_SIZE counts processes here; without LOCAL_WORLD_SIZE it may also be nodes (Lepton's helper)."""
    total = reading.attempt("nnodes", lambda: environment.integer("WORLD_SIZE", 1), "WORLD_SIZE")
    local = reading.attempt("nnodes", lambda: environment.integer("LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE")
    base = reading.attempt("node_rank", lambda: environment.integer("BASE_RANK"), "NODE_RANK or BASE_RANK")
    if local is None or total is None:
        if total and total.value > 1:
            reading.refuse(
                "nnodes",
                Phrase(
                    "WORLD_SIZE={total} with NODE_RANK and without RANK counts processes for Composer and "
                    "nodes for others; LOCAL_WORLD_SIZE, which would decide, is not set",
                    total=total.value,
                ),
                "set LOCAL_WORLD_SIZE, or pass --nnodes",
            )
        return
    per_node = max(1, local.value)  # 0 on machines without GPUs: one process
    reading.nproc_per_node = Sourced(per_node, local.source)
    if total.value % per_node:
        reading.refuse(
            "nnodes",
            Phrase(
                "WORLD_SIZE={total} is not a multiple of {local_source}={per_node}",
                total=total.value,
                local_source=local.source,
                per_node=per_node,
            ),
        )
        return
    reading.nnodes = Sourced(total.value // per_node, "WORLD_SIZE ÷ LOCAL_WORLD_SIZE")
    if base and reading.node_rank is None:
        reading.node_rank = Sourced(base.value // per_node, "BASE_RANK ÷ LOCAL_WORLD_SIZE")
    if base and reading.node_rank and base.value != reading.node_rank.value * per_node:
        reading.refuse(
            "node_rank",
            Phrase(
                "BASE_RANK={base} is not NODE_RANK={rank} × {per_node}: nodes with different numbers of "
                "processes cannot be launched",
                base=base.value,
                rank=reading.node_rank.value,
                per_node=per_node,
            ),
        )


def _refine_torchrun(reading: Reading, environment: Environment) -> None:
    """A worker, always. GROUP_* count nodes; everything else counts processes."""
    try:
        workers.mark(reading, environment, workers.TORCHRUN, "TORCHELASTIC_RUN_ID is set")
    except TopologyError as error:
        reading.level = "process"
        reading.add_problem("level", error)
    size, local = reading.world_size, reading.nproc_per_node
    if reading.nnodes is None and size and local and size % local.value == 0:
        reading.nnodes = Sourced(size // local.value, "WORLD_SIZE ÷ LOCAL_WORLD_SIZE")


BARE_MASTER_QUAD = Dialect(
    name="bare_master_quad",
    title="MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK",
    marks=(("MASTER_ADDR", "WORLD_SIZE", "RANK"),),
    nnodes=("WORLD_SIZE",),
    node_rank=("RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    same_node_rank=("NODE_RANK",),
    same_nnodes=USER_NNODES,
    refine=_refine_quad,
)

LIGHTNING = Dialect(
    name="lightning",
    title="NODE_RANK and MASTER_ADDR (Lightning)",
    marks=(("NODE_RANK", "MASTER_ADDR"),),
    absent=("WORLD_SIZE",),
    nnodes=USER_NNODES,
    node_rank=("NODE_RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT", "STANDALONE_PORT"),
    nproc_per_node=("NPROC_PER_NODE",),
    same_nnodes=USER_NNODES,
    hint="set NNODES on every node",
    refine=mark_process_names,
)

MOSAICML = Dialect(
    name="mosaicml",
    title="MosaicML platform (Composer)",
    marks=(("WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"), ("WORLD_SIZE", "BASE_RANK", "MASTER_ADDR")),
    absent=("RANK", "LOCAL_RANK", "DLROVER_MASTER_ADDR"),
    node_rank=("NODE_RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    refine=_refine_mosaicml,
)

TORCHRUN = Dialect(
    name="torchrun",
    title="torchrun worker (refused: start once per node)",
    marks=(
        ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "GROUP_RANK"),
        ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK"),
    ),
    nnodes=("GROUP_WORLD_SIZE",),
    node_rank=("GROUP_RANK",),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("LOCAL_WORLD_SIZE",),
    job_id=("TORCHELASTIC_RUN_ID",),
    restart_count=("TORCHELASTIC_RESTART_COUNT",),
    refine=_refine_torchrun,
)
