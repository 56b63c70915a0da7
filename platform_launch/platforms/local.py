"""No platform: one node, unless a variable indicates several.

A job of four nodes with half of its variables set must not become four jobs of one node each.
"""

from __future__ import annotations

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError, shown
from platform_launch.platforms.base import Dialect, require_equal
from platform_launch.platforms.reading import USER_NNODES, Reading
from platform_launch.text import Phrase

_COUNTS = ("WORLD_SIZE", *USER_NNODES, "POD_NUMS", "HOST_NUM", "NODE_NUM")
_RANKS = ("RANK", "NODE_RANK", "GROUP_RANK", "BASE_RANK")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - compared, never bound
_QUAD = ("WORLD_SIZE", "RANK", "MASTER_ADDR")
_ALONE = ("FLUX_URI", "NODE_LIST", "NODE_IP_LIST", "CHIEF_IP")


def multi_node_hint(environment: Environment) -> str | None:
    """Return the first variable, as ``NAME=value``, that indicates more than one node, or None.

    A rank without a count is such a hint; a rank with a count of 1 is not.
    """
    counts = [name for name in _COUNTS if name in environment]
    for name in counts:
        if environment[name].strip() != "1":
            return f"{name}={shown(environment[name].strip())}"
    if not counts:
        for name in (*_RANKS, *_ALONE):
            if name in environment:
                return f"{name}={shown(environment[name].strip())}"
        address = environment.get("MASTER_ADDR", "").strip()
        if address and address not in _LOOPBACK:
            return f"MASTER_ADDR={shown(address)}"
    return None


def _hosts_of_tf_config(environment: Environment) -> int:
    """Return how many hosts a TensorFlow cluster has: more than one is a job of several nodes.

    Raises TopologyError if TF_CONFIG cannot be read: this may be one node of many.
    """
    text = environment.get("TF_CONFIG", "").strip()
    if not text:
        return 0
    import json

    try:
        cluster = (json.loads(text) or {}).get("cluster") or {}  # templates leave null if there is no cluster
        return sum(len(addresses or ()) for addresses in cluster.values())
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise TopologyError(
            Phrase(
                "TF_CONFIG={text} cannot be read ({kind}): expected JSON with the hosts of a cluster, "
                "and nothing else says whether this is one node of several",
                text=shown(text),
                kind=type(error).__name__,
            ),
            "correct it or unset it; or pass --nnodes --node-rank --master-addr, for one node --nnodes 1",
        ) from error


def assume_one_node(reading: Reading, environment: Environment) -> None:
    """Assume one node if nothing indicates several; otherwise keep what was read and refuse the rest."""
    hint = multi_node_hint(environment)
    if hint is None:
        try:
            hosts = _hosts_of_tf_config(environment)
        except TopologyError as error:
            if not any(name in environment for name in _COUNTS):
                reading.add_problem("nnodes", error)
                return
            hosts = 0
        hint = Phrase("TF_CONFIG with {hosts} hosts", hosts=hosts) if hosts > 1 else None
    if hint is None:
        reading.nnodes = Sourced(1, Phrase("no multi-node variables are set"))
        return
    missing = [name for name in _QUAD if name not in environment]
    message = Phrase(
        "{hint} indicates several nodes, but no known platform's variables are complete", hint=hint
    )
    if missing and len(missing) < len(_QUAD):
        unset = (
            Phrase("{missing} is", missing=missing[0])
            if len(missing) == 1
            else Phrase("{missing} are", missing=" and ".join(missing))
        )
        message = Phrase("{hint} indicates several nodes, but {unset} not set", hint=hint, unset=unset)
    advice = "set WORLD_SIZE (nodes), RANK (this node), MASTER_ADDR and MASTER_PORT on every node"
    if hint.startswith("FLUX_URI"):
        reading.platform = "flux"
        message = Phrase(
            "{hint} without FLUX_TASK_RANK: in flux batch and flux alloc only one copy of a script runs",
            hint=hint,
        )
        advice = "start it on every node: flux run -N <nodes> --tasks-per-node=1 <this command>"
    others = Phrase("pass --nnodes --node-rank --master-addr; for a job of one node pass --nnodes 1")
    reading.add_problem(
        "nnodes", TopologyError(message, Phrase("{first}; or {others}", first=advice, others=others))
    )


def _refine(reading: Reading, environment: Environment) -> None:
    require_equal(reading, "nnodes", environment, USER_NNODES)
    assume_one_node(reading, environment)


LOCAL = Dialect(
    name="local",
    title="one machine, no platform",
    marks=((),),
    nnodes=("WORLD_SIZE", *USER_NNODES),
    node_rank=("RANK", "NODE_RANK"),
    master_addr=("MASTER_ADDR",),
    master_port=("MASTER_PORT",),
    nproc_per_node=("NPROC_PER_NODE",),
    refine=_refine,
    place="only when no variable of any platform speaks of several nodes",
)
