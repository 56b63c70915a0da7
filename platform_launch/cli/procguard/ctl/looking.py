"""``procguard ctl groups``, ``workers``, ``ranks`` and ``events``."""

from __future__ import annotations

from typing import Any

import click

from platform_launch.cli.procguard.ctl.client import Client, connected, plain, segment
from platform_launch.cli.procguard.ctl.tables import local, print_json, print_table


@click.command()
@click.argument("name", required=False)
@connected
def groups(client: Client, name: str | None, as_json: bool) -> None:
    """List groups, or one of them with what it waits for and why it failed."""
    found = client.get(f"/groups/{segment(name)}" if name else "/groups")
    if as_json:
        print_json(found)
        return
    rows = [_group_row(found, verdict=True)] if name else map(_group_row, found)
    titles = ("group", "state", "since", "run", "restarts", "workers", "master", "about")
    print_table(titles, rows, "no groups yet: procguard ctl create NAME")


def _group_row(group: dict[str, Any], *, verdict: bool = False) -> tuple[object, ...]:
    settings = group["settings"]
    master = f"{settings['master_addr'] or '?'}:{settings['master_port']}"
    return (
        group["name"],
        group["phase"],
        local(group["phase_since"]),
        group["generation"],
        f"{group['restarts_used']}/{settings['max_restarts']}",
        len(group["workers"]),
        master,
        _about(group, verdict=verdict),
    )


def _about(group: dict[str, Any], *, verdict: bool) -> str:
    failure = group["failure"]
    parts = []
    if failure:
        parts.append(": ".join(filter(None, (failure["worker"], failure["text"]))))
        if failure["verdict"] and verdict:
            parts.append(failure["verdict"])
    if group["silent"]:
        parts.append(f"silent: {', '.join(group['silent'])}")
    if group["waiting_for"]:
        parts.append(f"waiting for {', '.join(group['waiting_for'])}")
    return "\n".join(parts)


@click.command()
@click.option("--group", metavar="NAME", help="Only the workers of this group.")
@connected
def workers(client: Client, group: str | None, as_json: bool) -> None:
    """List workers."""
    found = [worker for worker in client.get("/workers") if group is None or worker["group"] == group]
    if as_json:
        print_json(found)
        return
    titles = ("worker", "group", "state", "rank", "GPU use", "heartbeat", "restarts", "about")
    print_table(titles, map(_worker_row, found), "no workers: start `procguard agent` on each node")


def _worker_row(worker: dict[str, Any]) -> tuple[object, ...]:
    used = [gpu["utilization_percent"] for gpu in worker["gpus"] if gpu["utilization_percent"] is not None]
    age = worker["heartbeat_age_s"]
    state = f"silent ({worker['state']})" if worker["silent"] else worker["state"]
    code = worker["exit_code"]
    return (
        worker["worker"],
        worker["group"] or "-",
        state if code is None else f"{state} {code}",
        "-" if worker["rank"] is None else worker["rank"],
        " ".join(f"{use:.0f}%" for use in used),
        "never" if age is None else f"{age:.0f} s ago",
        worker["restarts"],
        worker["reason"],
    )


@click.command()
@click.argument("name")
@connected
def ranks(client: Client, name: str, as_json: bool) -> None:
    """Show the rank table a start would use now, and what is in its way."""
    found = client.get(f"/groups/{segment(name)}/ranks")
    if as_json:
        print_json(found)
        return
    rows = [
        (place["worker"], place["rank"], place["local_rank"], place["node_rank"], place["world_size"])
        for place in found["places"]
    ]
    titles = ("worker", "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
    print_table(titles, rows, "no ranks can be given out")
    for one in (*found["problems"], *found["notes"]):
        click.echo(plain(f"{one['text']}: {one['hint']}" if one["hint"] else one["text"]))


@click.command()
@click.option("-n", "--number", type=click.IntRange(1, 500), default=50, show_default=True)
@connected
def events(client: Client, number: int, as_json: bool) -> None:
    """List what was changed, when and by whom, newest first."""
    found = client.get("/events", limit=number)
    if as_json:
        print_json(found)
        return
    rows = [(local(one["at"]), one["who"], one["action"], one["object"], one["detail"]) for one in found]
    print_table(("when", "who", "what", "of", "detail"), rows, "nothing was changed yet")
