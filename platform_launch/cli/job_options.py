"""The flags that describe a job, shared by ``job`` and ``init``, and how they become a description.

Every flag is a text here: the job file and the flags go through the same checks in ``jobs.description``.
"""

from __future__ import annotations

from typing import Any

import click

from platform_launch.cli import completion
from platform_launch.cli.flags import flags
from platform_launch.errors import UsageError, shown
from platform_launch.jobs.description import LISTS, MAPPINGS, Value
from platform_launch.text import Phrase

job_options = flags(
    click.option("--name", metavar="NAME", help="Name of the job, its pods and its log."),
    click.option("--nodes", metavar="N", help="Number of nodes (default: 1)."),
    click.option("--spares", metavar="N", help="Nodes that wait until one of the others is lost."),
    click.option("--gpus-per-node", metavar="N", help="GPUs per node (default: 8); 0 for none."),
    click.option("--image", metavar="IMAGE", help="Container image."),
    click.option("--entrypoint", metavar="PATH", help="start_multinode_platform.sh, where the job runs."),
    click.option(
        "--script",
        metavar="FILE",
        shell_complete=completion.files,
        help="Python script, where the job runs.",
    ),
    click.option("--volume", "volumes", multiple=True, metavar="SOURCE:PATH[:ro]", help="Claim or /folder."),
    click.option("--time", metavar="H:M:S", help="Time limit."),
    click.option("--cpus", metavar="N", help="CPUs per node."),
    click.option("--memory-gib", metavar="N", help="Memory per node."),
    click.option("--shm-gib", metavar="N", help="Size of /dev/shm (default: half the memory, or 64)."),
    click.option("--rdma", metavar="RESOURCE[=N]", help="RDMA resource, e.g. rdma/hca_shared_devices_a=1."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable for the training."),
    click.option("--secret-env", multiple=True, metavar="NAME=SECRET:KEY", help="Variable out of a Secret."),
    click.option("--node-selector", multiple=True, metavar="LABEL=VALUE", help="Nodes with this label only."),
    click.option("--toleration", "tolerations", multiple=True, metavar="TAINT", help="Nodes with it, too."),
    click.option("--exclude", multiple=True, metavar="NODE", help="A node that it must not run on."),
    click.option(
        "--quarantine",
        metavar="FILE",
        shell_complete=completion.files,
        help="More such nodes; read here, and by the job itself.",
    ),
    click.option("--namespace", metavar="NAME", help="Kubernetes namespace."),
    click.option("--queue", "--partition", metavar="NAME", help="Slurm partition, Volcano or Kueue queue."),
    click.option("--account", metavar="NAME", help="Slurm account."),
    click.option("--retries", metavar="N", help="How often the job may start again (default: 3)."),
    click.option("--requeue/--no-requeue", default=None, help="Slurm: go on after the time limit."),
    click.option("--notice", metavar="SECONDS", help="Slurm: save so long before the end (default: 120)."),
    click.option(
        "--option", "options", multiple=True, metavar="FLAG", help="For the launcher: --option=--strict"
    ),
)


def description(given: dict[str, Any], script_arguments: tuple[str, ...]) -> dict[str, Value]:
    """Return what was said by flag, in the form of a job file. Raises UsageError for a pair without =."""
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
    if script_arguments:
        values["arguments"] = list(script_arguments)
    return values


def _pair(name: str, text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        # The text may be a secret that somebody pasted: it is not repeated.
        what = "a value" if name == "secret_env" else shown(text)
        raise UsageError(
            Phrase("--{flag} {what}: expected NAME=VALUE", flag=name.replace("_", "-"), what=what)
        )
    return key, value
