"""``procguard ctl create``, ``set``, ``owners``, ``move``, ``start``, ``stop``, ``drain`` and others that
change something.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from platform_launch.cli.flags import Function, Number, flags
from platform_launch.cli.output import print_json
from platform_launch.cli.procguard.ctl.client import GROUPS, NODES, WORKERS, ApiClient, connected, segment
from platform_launch.cli.procguard.ctl.reading import failure_text, print_verdict
from platform_launch.console.languages import translate
from platform_launch.errors import UsageError
from platform_launch.text import Phrase, joined


def _number(flag: str, unit: str, text: str) -> Callable[[Function], Function]:
    """Return an option for a setting of this unit; the names of those in seconds end so."""
    name = flag.removeprefix("--").replace("-", "_") + ("_s" if unit == "SECONDS" else "")
    return click.option(flag, name, type=Number(), metavar=unit, help=text)


_settings = flags(
    click.option("--master-addr", metavar="NODE", shell_complete=NODES, help="The node that runs rank 0."),
    click.option("--master-port", type=click.IntRange(1, 65535), help="Must be free on the master node."),
    click.option("--world-size", metavar="N|all", help="Number of ranks; `all`: every worker."),
    click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="nccl for GPUs, gloo for CPUs."),
    click.option("--kind", type=click.Choice(["process", "node"]), help="What a worker is."),
    click.option("--command", metavar="COMMAND", help="As typed in a shell; empty: each agent's default."),
    click.option(
        "--directory", metavar="FOLDER", help="Where it starts, relative to each agent's directory."
    ),
    click.option(
        "--env",
        "environment",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of the command; repeatable; replaces all of them.",
    ),
    click.option(
        "--queue-workers", type=click.IntRange(0, 10_000), help="Number of workers for --when-free; 0: none."
    ),
    click.option(
        "--queue-nodes", metavar="PATTERNS", help="Nodes or labels for --when-free, such as `gn1* h100`."
    ),
    click.option("--hold-until", metavar="TIME|never", help="When to stop it and release its workers."),
    click.option("--note", metavar="TEXT", help="What the group is for."),
    click.option(
        "--link", "links", multiple=True, metavar="URL", help="A link; repeatable; replaces all of them."
    ),
    click.option(
        "--shared-gpus/--no-shared-gpus",
        default=None,
        help="Start even if other users' processes hold the GPUs.",
    ),
    _number("--idle-percent", "PERCENT", "GPU use below this counts as idle."),
    _number("--idle-minutes", "MINUTES", "Report the group when idle for this long; 0: never."),
    click.option("--idle-stop/--no-idle-stop", default=None, help="Also stop it then."),
    click.option("--notify/--no-notify", default=None, help="Send notices to the user who starts it."),
    click.option(
        "--max-restarts",
        type=click.IntRange(0, 1000),
        help="How often the group restarts automatically after a failure.",
    ),
    _number("--backoff", "SECONDS", "Pause before a restart."),
    _number(
        "--silent-after",
        "SECONDS",
        "A running group is degraded when a worker has sent no heartbeat for this long.",
    ),
    _number(
        "--fail-after", "SECONDS", "A running group fails when a worker has sent no heartbeat for this long."
    ),
    _number("--ready-within", "SECONDS", "All workers must be ready to start within this time."),
    _number("--grace", "SECONDS", "Between SIGTERM and SIGKILL."),
)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings given on the command line."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    if "environment" in given:
        pairs = [entry.partition("=") for entry in given["environment"]]
        if not all(name and equals for name, equals, _ in pairs):
            raise UsageError(
                Phrase("--env {value}: expected NAME=VALUE", value=" ".join(given["environment"]))
            )
        given["environment"] = {name: value for name, _, value in pairs}
    size = given.get("world_size")
    if size is not None:
        if size != "all" and not (size.isascii() and size.isdigit()):
            raise UsageError(Phrase("--world-size {value!r}: expected a number or `all`", value=size))
        given["world_size"] = None if size == "all" else int(size)
    for name, nothing in (("hold_until", ("", "never")), ("queue_workers", (0,))):
        if given.get(name) in nothing:
            given[name] = None
    return given


@click.command()
@click.argument("name")
@click.option("--like", metavar="GROUP", shell_complete=GROUPS, help="Copy the settings of this group.")
@_settings
@connected
def create(client: ApiClient, name: str, like: str | None, as_json: bool, **values: Any) -> None:
    """Create a group."""
    given = _given(values)
    if like is not None and given:
        raise UsageError("--like copies all settings of that group", "change them later: procguard ctl set")
    made = client.send("POST", "/groups", {"name": name, "settings": given, "like": like})
    _echo(Phrase("{name} created", name=name), made, as_json)


@click.command("set")
@click.argument("name", shell_complete=GROUPS)
@_settings
@connected
def set_(client: ApiClient, name: str, as_json: bool, **values: Any) -> None:
    """Change a group's settings. Others keep their values. They take effect at the next start."""
    given = _given(values)
    if not given:
        raise UsageError("expected at least one setting", "see procguard ctl set --help")
    path = f"/groups/{segment(name)}"
    settings = client.get(path)["settings"] | given
    answer = client.send("PUT", f"{path}/settings", settings)
    _echo(Phrase("settings of {name} changed", name=name), answer, as_json)


@click.command()
@click.argument("workers", nargs=-1, required=True, metavar="WORKER…", shell_complete=WORKERS)
@click.option("--group", metavar="NAME", shell_complete=GROUPS, help="The group to move them to.")
@click.option("--out", is_flag=True, help="Take them out of their group.")
@connected
def move(client: ApiClient, workers: tuple[str, ...], group: str | None, out: bool, as_json: bool) -> None:
    """Move workers to a group."""
    if (group is None) is not out:
        raise UsageError("expected either --group NAME or --out")
    client.send("POST", "/move", {"workers": list(workers), "group": group})
    target = group or Phrase("no group")
    _echo(Phrase("{workers} → {group}", workers=joined(workers), group=target), None, as_json)


def _group_action(action: str, meaning: str, done: str, *options: Any) -> click.Command:
    @connected
    def act(client: ApiClient, name: str, as_json: bool, wait: bool, when_free: bool = False) -> int | None:
        what = "queue" if when_free else action
        answer = client.send("POST", f"/groups/{segment(name)}/{what}")
        phase, run = answer["group"]["phase"], answer["group"]["run_number"]
        result = "queued" if when_free else done
        text = Phrase("{name}: {result} (run {run})", name=name, result=result, run=run)
        if not answer["changed"]:
            text = Phrase("{name}: no change, {state} (run {run})", name=name, state=phase, run=run)
        if not wait:
            _echo(text, answer, as_json)
            return None
        click.echo(translate(text), err=True)
        return _waited(client, name, as_json)

    wait = click.option(
        "--wait",
        is_flag=True,
        help="Wait until it ends. Exit code: 0 finished, 1 failed, 3 stopped (0 with `stop`).",
    )
    argument = click.argument("name", shell_complete=GROUPS)
    return click.command(action, help=meaning)(argument(flags(wait, *options)(act)))


def _waited(client: ApiClient, name: str, as_json: bool) -> int:
    """Wait until a group has stopped; return the exit code for how it ended."""
    while (group := client.get(f"/groups/{segment(name)}"))["phase"] not in _ENDS:
        time.sleep(_AGAIN_S)
    state = Phrase("{state}", state=group["phase"])
    if failure := group["failure"]:
        state = Phrase("{state}: {failure}", state=state, failure=failure_text(failure))
    _echo(
        Phrase("{name}: {state} (run {run})", name=name, state=state, run=group["run_number"]), group, as_json
    )
    if failure and not as_json:
        print_verdict(failure)
    stopping = click.get_current_context().command.name == "stop"
    return 0 if stopping else _ENDS[group["phase"]]


_AGAIN_S = 1.0
_ENDS = {"idle": 3, "finished": 0, "failed": 1, "stopped": 3}

start = _group_action(
    "start",
    "Start all workers of a group, or none.",
    "start requested",
    click.option("--when-free", is_flag=True, help="Queue it until enough workers are free."),
)
stop = _group_action("stop", "Stop all workers of a group.", "stop requested")
restart = _group_action("restart", "Stop all workers of a group and start them again.", "restart requested")


@click.command()
@click.argument("name", shell_complete=GROUPS)
@connected
def delete(client: ApiClient, name: str, as_json: bool) -> None:
    """Delete a group that is not running. Its workers stay, in no group."""
    client.send("DELETE", f"/groups/{segment(name)}")
    _echo(Phrase("{name} deleted", name=name), None, as_json)


@click.command()
@click.argument("node", shell_complete=NODES)
@connected
def forget(client: ApiClient, node: str, as_json: bool) -> None:
    """Remove a node that is gone."""
    client.send("DELETE", f"/nodes/{segment(node)}")
    _echo(Phrase("{name} removed", name=node), None, as_json)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…", shell_complete=NODES)
@click.option("--end", is_flag=True, help="End the drain.")
@connected
def drain(client: ApiClient, nodes: tuple[str, ...], end: bool, as_json: bool) -> None:
    """Keep new runs off nodes. What runs there continues."""
    for node in nodes:
        answer = client.send("PUT", f"/nodes/{segment(node)}/drain", {"drained": not end})
        text = Phrase("{node}: no longer drained", node=node) if end else Phrase("{node}: drained", node=node)
        _echo(text, answer, as_json)


@click.command()
@click.argument("name", shell_complete=GROUPS)
@click.argument("users", nargs=-1, metavar="[USER…]")
@click.option("--everyone", is_flag=True, help="Let every operator change and start it.")
@connected
def owners(client: ApiClient, name: str, users: tuple[str, ...], everyone: bool, as_json: bool) -> None:
    """Show who may change and start a group besides admins. With USERs, set them."""
    path = f"/groups/{segment(name)}"
    settings = client.get(path)["settings"]
    if users or everyone:
        if users and everyone:
            raise UsageError("expected either USER… or --everyone")
        settings = client.send("PUT", f"{path}/settings", settings | {"owners": list(users)})["settings"]
    if as_json:
        print_json(settings["owners"])
    else:
        click.echo("\n".join(settings["owners"]) or translate("every operator"))


@click.command()
@click.argument("node", shell_complete=NODES)
@connected
def release(client: ApiClient, node: str, as_json: bool) -> None:
    """Release a node from quarantine."""
    answer = client.send("POST", f"/nodes/{segment(node)}/release")
    _echo(Phrase("{node}: its agent has been asked to release it", node=node), answer, as_json)


def _echo(text: Phrase, answer: object, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(translate(text), err=True)
