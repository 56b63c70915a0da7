"""ProcGuard, this project's own: a worker's place, as its agent was given it by the server.

Source: platform_launch/procguard/api/ranks.py and agent/variables.py.
"""

from __future__ import annotations

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase


def _refine(reading: Reading, environment: Environment) -> None:
    """A worker that is a node's launcher has no LOCAL_RANK; several processes of a node cannot launch it."""
    try:
        rank, local_rank, local_size, world_size = (
            number.value if (number := environment.integer(name)) else None
            for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
        )
    except TopologyError as error:
        reading.note("node_rank", error)
        return
    if local_size is not None and local_size > 1:
        reading.mark_process(
            Phrase(
                "LOCAL_WORLD_SIZE={local_size} means that this worker is one of several processes on "
                "this node",
                local_size=local_size,
            ),
            "set the kind of the group to one launcher a node, with one worker of each node; or let its "
            "command be the training itself",
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
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
    refine=_refine,
)
