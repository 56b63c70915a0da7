"""``platform-launch topology``: the reading of the platform's variables, alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from platform_launch import hardware
from platform_launch.cli import options
from platform_launch.cli.flags import json_or_table
from platform_launch.cli.output import print_json
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import LaunchError, TopologyError
from platform_launch.plan.processes import processes_per_node
from platform_launch.platforms import detect, doubt_count
from platform_launch.text import Phrase, padded
from platform_launch.topology import Topology


@click.command("topology")
@options.topology_options
@options.assume_gpus
@json_or_table
@options.lang_option
def command(form: str, assume_gpus: str | None, **flags: Any) -> int:
    """Print which node of which job this is, and where each value came from.

    Exits non-zero if the variables do not determine it. With --format json, the output then has "error"
    and "hint", next to whatever could be read.
    """
    try:
        topology = _read(options.overrides(flags), assume_gpus)
    except LaunchError as error:
        if form != "json":
            raise
        reading = error.reading if isinstance(error, TopologyError) else {}
        print_json({**reading, "error": error.message, "hint": error.hint})
        return error.exit_code
    if form == "json":
        print_json(topology.as_dict())
        return 0
    from platform_launch.plan.render import topology_rows

    rows = topology_rows(topology)
    for name, value, source in rows:
        shown = translate(value) if isinstance(value, Phrase) else value
        row = f"{padded(translate(name), 19)} {padded(shown, 30)} {translate(source)}"
        click.echo(row.rstrip())
    for warning in topology.warnings:
        click.echo(f"[WARN] {translate(warning)}", err=True)
    return 0


def _read(overrides: Any, assume_gpus: str | None) -> Topology:
    """Detect the topology. If the platform gives no number of processes, count them as a launch would."""
    env = Environment.of_this_process()
    machine = hardware.detect(env, assume=assume_gpus)
    topology = doubt_count(detect(env, overrides), len(machine.gpus.devices))
    if topology.nproc_per_node is None:
        nproc, source = processes_per_node(None, "", machine)
        sources = {**topology.sources, "nproc_per_node": source}
        topology = dataclasses.replace(topology, nproc_per_node=nproc, sources=sources)
    return topology
