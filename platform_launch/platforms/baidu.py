"""Baidu: AIHC (Baige) PyTorch jobs, and PaddleCloud, whose names change meaning inside Paddle's launcher.

Sources: cloud.baidu.com/doc/AIHC/s/mm346i20k; PaddlePaddle/Paddle distributed/cloud_utils.py.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.hostlist import position
from platform_launch.platforms.base import Dialect
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase


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


AIHC = Dialect(
    name="aihc",
    title="Baidu AIHC (Baige)",
    marks=(("AIHC_JOB_NAME",),),
    # A clone of PyTorchJob: where PET_NNODES is set, WORLD_SIZE may count processes.
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
