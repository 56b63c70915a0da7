"""The flags that describe a job, for ``job`` and ``init``, and the description made from them.

Flags are text here, because job files and flags go through the same checks in ``jobs.description``. The
options of ``run`` are kept as given, and parsed as ``run`` parses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from platform_launch.cli import completion, run
from platform_launch.cli.flags import flags
from platform_launch.errors import UsageError, shown
from platform_launch.jobs.description import LISTS, MAPPINGS, Value
from platform_launch.text import Phrase

Function = TypeVar("Function", bound=Callable[..., Any])

_LAUNCHER = "launcher options"
_OF_ONE_NODE = (
    "nnodes", "node_rank", "master_addr", "platform", "ranks_from", "print_env", "assume_gpus", "form",
)  # fmt: skip
"""Options of ``run`` that the scheduler sets, or that start nothing."""

_described = flags(
    click.option("--name", metavar="NAME", help="Name of the job, its pods and its log."),
    click.option("--nodes", metavar="N", help="Number of nodes (default: 1)."),
    click.option("--spares", metavar="N", help="Spare nodes: each waits until a node is lost."),
    click.option("--min-nodes", metavar="N", help="If no spare is left, continue with at least N nodes."),
    click.option("--gpus-per-node", metavar="N", help="GPUs per node (default: 8); 0 for none."),
    click.option("--image", metavar="IMAGE", help="Container image."),
    click.option(
        "--entrypoint",
        metavar="PATH",
        help="platform-launch, or the path of start_multinode_platform.sh, where the job runs.",
    ),
    click.option(
        "--script",
        metavar="FILE",
        shell_complete=completion.files,
        help="Python script, where the job runs.",
    ),
    click.option("--module", "-m", metavar="NAME", help="Python module, as python -m runs it."),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="SOURCE:PATH[:ro]",
        help="Mount a claim, /folder of the node, SERVER:/export, secret/NAME or configmap/NAME.",
    ),
    click.option("--time", metavar="H:M:S", help="Time limit, as in 1:30:00 (1:30 is minutes and seconds)."),
    click.option("--cpus", metavar="N", help="CPUs per node."),
    click.option("--memory-gib", metavar="N", help="Memory per node."),
    click.option("--shm-gib", metavar="N", help="Size of /dev/shm (default: half the memory, or 64)."),
    click.option(
        "--gpu-resource", metavar="RESOURCE", help="Resource name of the GPUs (default: nvidia.com/gpu)."
    ),
    click.option(
        "--rdma", multiple=True, metavar="RESOURCE[=N]", help="RDMA resource: rdma/hca_shared_devices_a=1."
    ),
    click.option(
        "--resource", "resources", multiple=True, metavar="NAME=N", help="Other resource: hugepages-2Mi=2Gi."
    ),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable of the job."),
    click.option("--secret-env", multiple=True, metavar="NAME=SECRET:KEY", help="Variable from a Secret."),
    click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the job and its pods."
    ),
    click.option(
        "--annotation",
        "annotations",
        multiple=True,
        metavar="KEY=VALUE",
        help="Annotation of the job and its pods.",
    ),
    click.option("--node-selector", multiple=True, metavar="LABEL=VALUE", help="Only nodes with this label."),
    click.option(
        "--toleration",
        "tolerations",
        multiple=True,
        metavar="KEY[=VALUE][:EFFECT]",
        help="Tolerate this taint; repeatable.",
    ),
    click.option("--exclude", multiple=True, metavar="NODE", help="Do not run on this node; repeatable."),
    click.option(
        "--quarantine",
        metavar="FILE",
        shell_complete=completion.files,
        help="Do not run on the nodes in this file; the job reads it too.",
    ),
    click.option("--namespace", metavar="NAME", help="Kubernetes namespace."),
    click.option("--queue", "--partition", metavar="NAME", help="Slurm partition, Volcano or Kueue queue."),
    click.option("--account", metavar="NAME", help="Slurm account."),
    click.option(
        "--image-pull-secret",
        "image_pull_secrets",
        multiple=True,
        metavar="NAME",
        help="Secret to pull the image with.",
    ),
    click.option("--service-account", metavar="NAME", help="Service account of the pods."),
    click.option("--security", metavar="restricted", help="Meet this PodSecurity level."),
    click.option(
        "--run-as", metavar="UID[:GID]", help="User of the container (restricted: 1000 by default)."
    ),
    click.option("--priority-class", metavar="NAME", help="Priority class of the pods."),
    click.option("--scheduler", metavar="NAME", help="Scheduler of the pods."),
    click.option(
        "--gang", metavar="NAME", help="Start all pods or none: volcano or scheduler-plugins (a PodGroup)."
    ),
    click.option("--host-network/--no-host-network", default=None, help="Use the node's own network."),
    click.option("--runtime", metavar="[KIND/]NAME", help="trainjob: the cluster's training runtime to use."),
    click.option(
        "--patch",
        metavar="FILE",
        shell_complete=completion.files,
        help="Merge this YAML into the pod template (strategic merge).",
    ),
    click.option("--ttl", metavar="D-H", help="Delete a finished job after this time (default: 7-0)."),
    click.option("--retries", metavar="N", help="How often the job may start again (default: 3)."),
    click.option("--requeue/--no-requeue", default=None, help="Slurm: resume after the time limit."),
    click.option(
        "--notice", metavar="SECONDS", help="Slurm: signal the job this long before the limit (default: 120)."
    ),
)


def job_options(function: Function) -> Function:
    """Add the options that describe a job, then the options of ``run`` that these do not replace."""
    left_out = {option.name for option in click.command()(_described(lambda: None)).params} | {*_OF_ONE_NODE}
    for option in reversed(run.command.params):
        if isinstance(option, click.Option) and option.expose_value and option.name not in left_out:
            function = _as_text(option)(function)
    return _described(function)


def _as_text(option: click.Option) -> Callable[[Function], Function]:
    """Return an option of ``run`` whose text is kept for the launcher."""
    flag = max(option.opts, key=len)

    def keep(ctx: click.Context, _option: click.Parameter, value: str | bool | None) -> None:
        if value not in (None, False):
            ctx.meta.setdefault(_LAUNCHER, []).append(flag if value is True else f"{flag}={value}")

    details: dict[str, Any] = {"is_flag": True}
    if not option.is_flag:
        details = {"metavar": _metavar(option), "shell_complete": option._custom_shell_complete}
    return click.option(
        *option.opts, option.name, expose_value=False, callback=keep, help=option.help, **details
    )


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return f"[{'|'.join(option.type.choices)}]"
    return "FILE" if isinstance(option.type, click.Path) else "N" if "range" in option.type.name else "TEXT"


def description(given: dict[str, Any], ctx: click.Context) -> dict[str, Value]:
    """Return the flags in the form of a job file. Raises UsageError for a pair without =."""
    values: dict[str, Value] = {}
    for name, value in given.items():
        if value is None or value == ():
            continue
        if name in MAPPINGS:
            values[name] = dict(_pair(name, text) for text in value)
        elif name in LISTS:
            values[name] = list(value)
        else:
            values[name] = str(value).lower() if isinstance(value, bool) else value
    if options := ctx.meta.get(_LAUNCHER):
        values["options"] = options
    if arguments := ctx.meta["arguments"]:
        values["arguments"] = list(arguments)
    return values


def _pair(name: str, text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        # The text may be a pasted secret: do not repeat it.
        what = Phrase("a value") if name == "secret_env" else shown(text)
        raise UsageError(
            Phrase("--{flag} {what}: expected NAME=VALUE", flag=name.replace("_", "-"), what=what)
        )
    return key, value
