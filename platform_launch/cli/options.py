"""Options that several commands share, and how they become values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

from platform_launch.topology import Overrides

Function = TypeVar("Function", bound=Callable[..., Any])

_TOPOLOGY = (
    click.option("--nnodes", type=click.IntRange(1), help="Number of nodes in the job."),
    click.option("--node-rank", type=click.IntRange(0), help="Rank of this node, from 0."),
    click.option("--master-addr", metavar="HOST", help="Name or address of node 0."),
    click.option("--master-port", type=click.IntRange(1, 65535), help="Rendezvous port on node 0."),
    click.option("--nproc-per-node", type=click.IntRange(1), help="Processes per node (default: one a GPU)."),
    click.option("--platform", metavar="NAME", help="Read this platform's variables only."),
)

assume_gpus = click.option(
    "--assume-gpus", metavar="SPEC", help="Pretend the hardware, e.g. 8xH100, 8xA100-80GB, 4 or cpu."
)

_TOGETHER = (
    click.option("--no-roll-call", is_flag=True, help="Start without meeting the other nodes first."),
    click.option(
        "--roll-call-timeout",
        "roll_call_timeout_s",
        type=click.FloatRange(1),
        default=600,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for all nodes.",
    ),
    click.option(
        "--node-timeout",
        "node_timeout_s",
        type=click.FloatRange(1),
        default=12,
        show_default=True,
        metavar="SECONDS",
        help="Silence after which a node is given up and all stop.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="How often to start again after a failure.",
    ),
)


@dataclass(frozen=True)
class TogetherFlags:
    """How the nodes of a job meet and stay together, as given by flags."""

    no_roll_call: bool
    roll_call_timeout_s: float
    node_timeout_s: float
    max_restarts: int


def together_options(function: Function) -> Function:
    """Add the flags of the roll call."""
    for option in reversed(_TOGETHER):
        function = option(function)
    return function


def together(values: dict[str, Any]) -> TogetherFlags:
    """Take the flags of the roll call out of a command's parameters."""
    return TogetherFlags(**{field.name: values.pop(field.name) for field in fields(TogetherFlags)})


def topology_options(function: Function) -> Function:
    """Add the flags that override the platform's variables."""
    for option in reversed(_TOPOLOGY):
        function = option(function)
    return function


def overrides(values: dict[str, Any]) -> Overrides:
    """Take the topology flags out of a command's parameters."""
    names = ("platform", "nnodes", "node_rank", "master_addr", "master_port", "nproc_per_node")
    return Overrides(**{name: values.pop(name) for name in names})
