"""``platform-launch doctor``: what would go wrong with a launch, on this node or between nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from platform_launch.cli import launch_options
from platform_launch.cli.flags import json_or_table, seconds
from platform_launch.cli.output import print_json
from platform_launch.cli.quarantine import needed_file, quarantine_file_option
from platform_launch.cli.run import ArgumentsAfterDashes
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.doctor import Level, examination, worst
from platform_launch.doctor.examination import Examination
from platform_launch.environment import Environment
from platform_launch.health.quarantine import node_name, quarantine_entry
from platform_launch.health.quarantine import release as release_node
from platform_launch.plan.render import hardware_rows
from platform_launch.rendezvous.listening import rendezvous_ports
from platform_launch.text import Phrase, counted, joined, padded, wrapped

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.INFO: "cyan"}


@click.command("doctor", cls=ArgumentsAfterDashes)
@launch_options.launch_options
@click.option("--quick", is_flag=True, help="Run only the fast checks of a launch: no torch, no other nodes.")
@click.option("--local", is_flag=True, help="Check only this node.")
@click.option(
    "--jax", "with_jax", is_flag=True, help="Check JAX instead of torch, on this node and between the nodes."
)
@seconds("--timeout", "join_limit_s", least=1, default=120.0, text="How long the nodes wait for each other.")
@click.option("--release", is_flag=True, help="Release this node from quarantine if no error is found.")
@quarantine_file_option
@json_or_table
def command(
    quick: bool,
    local: bool,
    with_jax: bool,
    join_limit_s: float,
    release: bool,
    quarantine: Path | None,
    form: str,
    **flags: Any,
) -> int:
    """Report what would go wrong with a launch. Takes the options of `run`, and starts nothing.

    Use it as the container command to check all nodes of a job: they connect to each other and run real
    collectives in pairs, which finds a slow or broken node.

    Exit code: 0 nothing found, 1 warnings, 2 errors. The ids are in docs/reference/findings.md.
    """
    env = Environment.of_this_process()
    file = needed_file(quarantine) if release else None
    request = dataclasses.replace(launch_options.request(flags), examines_only=True)
    found = examination.examine_launch(
        env,
        request,
        child_processes=not quick,
        other_nodes=not (quick or local),
        jax=with_jax,
        ports_of=rendezvous_ports,
        join_limit_s=join_limit_s,
    )
    if form == "json":
        print_json(_document(found, env))
    else:
        _print(found)
    if file is not None:
        _release(file, found, env)
    return int(worst(found.findings))


def _release(file: Path, found: Examination, env: Environment) -> None:
    name, console = node_name(env), Console()
    entry = quarantine_entry(file, env, found.plan.hardware.gpus.devices)
    if entry is None:
        console.info(Phrase("{name} is not in quarantine ({file})", name=name, file=file))
    elif worst(found.findings) is Level.ERROR:
        console.warn(
            Phrase("{node} stays in quarantine ({file}): errors were found", node=entry.node, file=file)
        )
    else:
        release_node(file, entry.node, "the doctor found no error")
        console.success(Phrase("{node} is released from quarantine ({file})", node=entry.node, file=file))


def _document(found: Examination, env: Environment) -> dict[str, object]:
    return {
        "node_rank": found.plan.topology.node_rank,
        "host": env.hostname,
        "level": worst(found.findings).name.lower(),
        "checked": list(found.checked),
        "passed": found.passed,
        "findings": [finding.as_dict() for finding in found.findings],
    }


def _print(found: Examination) -> None:
    for name, value, note in hardware_rows(found.plan):
        row = Phrase("{fact} ({note})", fact=value, note=note) if note else value
        click.echo(f"{padded(translate(name), 7)}  {translate(row)}")
    for finding in found.findings:
        level = click.style(f"{finding.level.name:<7}", fg=_COLOURS[finding.level])
        what = " ".join(translate(finding.what).splitlines())
        click.echo(f"{level}  {finding.id}: {what}")
        if finding.hint:
            hint = translate(Phrase("hint: {hint}", hint=Phrase.of(finding.hint)))
            click.echo(f"{'':7}  {' '.join(hint.splitlines())}")
    click.echo(_summary(found.checked, found.passed))
    counts = {level: sum(finding.level is level for finding in found.findings) for level in Level}
    errors, warnings = counted(counts[Level.ERROR], "error"), counted(counts[Level.WARNING], "warning")
    click.echo(translate(joined([errors, warnings])))


def _summary(checked: Sequence[str], passed: int) -> str:
    """Return how many checks passed, and which were made, by topic."""
    topics: dict[str, list[str]] = {}
    for topic, _, what in (name.partition(": ") for name in checked):
        topics.setdefault(topic, []).append(what)
    shown = [
        Phrase("{topic}: {whats}", topic=Phrase(topic), whats=joined(map(Phrase, whats)))
        if any(whats)
        else Phrase(topic)
        for topic, whats in topics.items()
    ]
    summary = Phrase(
        "{passed} of {checks} passed. Checked: {topics}",
        passed=passed,
        checks=counted(len(checked), "check"),
        topics=joined(shown, "; "),
    )
    return "\n  ".join(wrapped(translate(summary), 98))
