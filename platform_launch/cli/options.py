"""Options that several commands share, and the values made from them."""

from __future__ import annotations

from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import flags, seconds
from platform_launch.console import languages
from platform_launch.errors import UsageError
from platform_launch.plan.request import NOTICE_SIGNALS, RANK_ORDERS, RunOptions
from platform_launch.text import Phrase
from platform_launch.topology import Overrides

_HIGHEST_PORT = 65535
_LOOPBACK = "127.0.0.1"


def _platforms() -> list[str]:
    from platform_launch.platforms import PLATFORMS

    return [platform.name for platform in PLATFORMS]


topology_options = flags(
    click.option("--nnodes", type=click.IntRange(1), metavar="N", help="Number of nodes in the job."),
    click.option("--node-rank", type=click.IntRange(0), metavar="RANK", help="Rank of this node, from 0."),
    click.option("--master-addr", metavar="HOST", help="Name or address of node 0."),
    click.option(
        "--master-port", type=click.IntRange(1, 65535), metavar="PORT", help="Rendezvous port on node 0."
    ),
    click.option(
        "--nproc-per-node",
        type=click.IntRange(1),
        metavar="N",
        help="Processes per node (default: one per GPU).",
    ),
    click.option(
        "--platform",
        metavar="NAME",
        shell_complete=completion.names(lambda _ctx: _platforms()),
        help="Read only this platform's variables.",
    ),
)

assume_gpus = click.option(
    "--assume-gpus", metavar="SPEC", help="Assume this hardware, e.g. 8xH100, 8xA100-80GB, 4 or cpu."
)

lang_option = click.option(
    "--lang",
    type=click.Choice(languages.LANGUAGES),
    expose_value=False,
    is_eager=True,
    callback=lambda _ctx, _option, value: languages.choose(value) if value else None,
    help="Language of messages (default: the one that LANG names).",
)


def _metrics_address(
    _ctx: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """Read ``[ADDRESS:]PORT``."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or _LOOPBACK
    try:
        ip_address(host)
    except ValueError:
        raise UsageError(
            Phrase(
                "--metrics-port: {host!r} is not an address: expected PORT or ADDRESS:PORT, e.g. "
                "0.0.0.0:9400",
                host=host,
            )
        ) from None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _HIGHEST_PORT):
        raise UsageError(Phrase("--metrics-port: {port!r} is not a port: expected 0–65535", port=port))
    return host, int(port)


together_options = flags(
    click.option("--no-roll-call", is_flag=True, help="Start without waiting for the other nodes."),
    click.option(
        "--rank-order",
        type=click.Choice(RANK_ORDERS),
        default=RANK_ORDERS[0],
        show_default=True,
        help="Ranks as the platform gives them, or in the order of the network's switches.",
    ),
    seconds(
        "--roll-call-timeout",
        "roll_call_timeout_s",
        least=1,
        default=600,
        text="How long to wait for all nodes.",
    ),
    seconds(
        "--node-timeout",
        "node_timeout_s",
        least=1,
        default=60,
        text="Stop all nodes when one has been silent and the job stalled for this long.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(0),
        metavar="N",
        default=0,
        show_default=True,
        help="Restart up to N times after a failure.",
    ),
    click.option(
        "--spares",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="Hold N of the nodes in reserve to replace lost ones.",
    ),
    click.option(
        "--min-nodes",
        type=click.IntRange(1),
        metavar="N",
        help="If no spare is left, restart with the remaining nodes, at least N (default: wait for all).",
    ),
    click.option(
        "--on-hang",
        type=click.Choice(["report", "stop", "restart"]),
        default="report",
        show_default=True,
        help="What to do about a hang: report it, stop the job, or restart it.",
    ),
    seconds(
        "--hang-after",
        "hang_after_s",
        least=0,
        default=300,
        text="Report a hang after this long without progress on any rank; 0: never.",
    ),
    seconds(
        "--health-interval",
        "health_interval_s",
        least=0,
        default=15,
        text="Interval between GPU and RDMA health checks; 0: only after a failure.",
    ),
    click.option(
        "--quarantine",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="File on shared storage with nodes to exclude; bad nodes are added.",
    ),
    click.option(
        "--metrics-port",
        "metrics",
        metavar="[ADDRESS:]PORT",
        callback=_metrics_address,
        help="Serve metrics to Prometheus (default address: 127.0.0.1).",
    ),
    click.option(
        "--no-trainjob-status",
        is_flag=True,
        help="In a Kubeflow TrainJob: do not report progress; the script does.",
    ),
    click.option(
        "--notice-signal",
        type=click.Choice(NOTICE_SIGNALS),
        default=NOTICE_SIGNALS[0],
        show_default=True,
        help="Signal sent to ranks that handle it, on a spot notice or shortly before Slurm's end time.",
    ),
    click.option("--verbose", is_flag=True, help="Print on the screen everything that the log contains."),
)


def together(values: dict[str, Any]) -> RunOptions:
    """Remove the roll call's flags from a command's parameters and return them."""
    together = RunOptions(**{field.name: values.pop(field.name) for field in fields(RunOptions)})
    _check_reserve(values, together)
    return together


def overrides(values: dict[str, Any]) -> Overrides:
    """Remove the topology flags from a command's parameters and return them."""
    names = ("platform", "nnodes", "node_rank", "master_addr", "master_port", "nproc_per_node")
    return Overrides(
        **{name: values.pop(name) for name in names},
        spares=values.pop("spares", 0),
        min_nodes=values.pop("min_nodes", None),
    )


def _check_reserve(values: dict[str, Any], together: RunOptions) -> None:
    """Refuse options for a lost node without what they need."""
    flag = next((name for name in ("spares", "min_nodes") if values[name]), None)
    if flag is None:
        return
    given = f"--{flag.replace('_', '-')}"
    if together.no_roll_call:
        raise UsageError(
            Phrase(
                "{flag} and --no-roll-call: expected one of them, ranks are given when the nodes connect",
                flag=given,
            ),
            "leave --no-roll-call out",
        )
    if not together.max_restarts:
        raise UsageError(
            Phrase(
                "{flag} {number} without --max-restarts: it takes effect at a restart",
                flag=given,
                number=values[flag],
            ),
            "add --max-restarts, e.g. 3, and let the job resume from its last checkpoint",
        )
