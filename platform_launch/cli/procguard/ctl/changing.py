"""``procguard ctl create``, ``set``, ``owners``, ``move``, ``start``, ``stop``, ``drain`` and others."""

from __future__ import annotations

import time
from typing import Any

import click

from platform_launch.cli.flags import Number, flags
from platform_launch.cli.output import print_json
from platform_launch.cli.procguard.ctl.client import GROUPS, NODES, WORKERS, ApiClient, connected, segment
from platform_launch.cli.procguard.ctl.reading import print_verdict
from platform_launch.errors import UsageError

_settings = flags(
    click.option("--master-addr", metavar="NODE", shell_complete=NODES, help="The node that rank 0 runs on."),
    click.option("--master-port", type=click.IntRange(1, 65535)),
    click.option("--world-size", metavar="N|all", help="Number of processes; `all`: one per worker."),
    click.option("--backend", type=click.Choice(["nccl", "gloo"])),
    click.option(
        "--kind", type=click.Choice(["process", "node"]), help="Whether a worker is a process or a node."
    ),
    click.option("--command", metavar="COMMAND", help="As typed in a shell; empty: each agent's own."),
    click.option("--directory", metavar="FOLDER", help="Working directory, relative to each agent's."),
    click.option(
        "--env",
        "environment",
        multiple=True,
        metavar="NAME=VALUE",
        help="Variable of the command; repeatable. Replaces all earlier ones.",
    ),
    click.option(
        "--queue-workers",
        type=click.IntRange(0, 10_000),
        help="Number of workers --when-free takes; 0: none.",
    ),
    click.option(
        "--queue-nodes", metavar="PATTERNS", help="Nodes or labels it may use, such as `gn1* h100`."
    ),
    click.option("--hold-until", metavar="TIME|never", help="When to stop it and release its workers."),
    click.option("--note", metavar="TEXT"),
    click.option(
        "--link",
        "links",
        multiple=True,
        metavar="URL",
        help="Link to show; repeatable. Replaces all earlier ones.",
    ),
    click.option("--shared-gpus/--no-shared-gpus", default=None, help="Start on GPUs that others use, too."),
    click.option("--idle-percent", type=Number(), metavar="PERCENT", help="GPU use that counts as idle."),
    click.option(
        "--idle-minutes", type=Number(), metavar="MINUTES", help="Report after this time; 0: never."
    ),
    click.option("--idle-stop/--no-idle-stop", default=None, help="Stop it when it is reported as idle."),
    click.option("--notify/--no-notify", default=None, help="Notify the user who starts it."),
    click.option("--max-restarts", type=click.IntRange(0, 1000)),
    click.option("--backoff", "backoff_s", type=Number(), metavar="SECONDS"),
    click.option("--silent-after", "silent_after_s", type=Number(), metavar="SECONDS"),
    click.option("--fail-after", "fail_after_s", type=Number(), metavar="SECONDS"),
    click.option("--ready-within", "ready_within_s", type=Number(), metavar="SECONDS"),
    click.option("--grace", "grace_s", type=Number(), metavar="SECONDS", help="Between SIGTERM and SIGKILL."),
)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    if "environment" in given:
        pairs = [entry.partition("=") for entry in given["environment"]]
        if not all(name and equals for name, equals, _ in pairs):
            raise UsageError(f"--env {' '.join(given['environment'])}: expected NAME=VALUE")
        given["environment"] = {name: value for name, _, value in pairs}
    size = given.get("world_size")
    if size is not None:
        if size != "all" and not (size.isascii() and size.isdigit()):
            raise UsageError(f"--world-size {size!r}: expected a number, or `all`")
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
    _echo(f"{name}: created", made, as_json)


@click.command("set")
@click.argument("name", shell_complete=GROUPS)
@_settings
@connected
def set_(client: ApiClient, name: str, as_json: bool, **values: Any) -> None:
    """Change the given settings of a group. They take effect at its next start."""
    given = _given(values)
    if not given:
        raise UsageError("nothing to set: expected at least one setting", "see procguard ctl set --help")
    path = f"/groups/{segment(name)}"
    settings = client.get(path)["settings"] | given
    _echo(f"{name}: settings changed", client.send("PUT", f"{path}/settings", settings), as_json)


@click.command()
@click.argument("workers", nargs=-1, required=True, metavar="WORKER…", shell_complete=WORKERS)
@click.option("--group", metavar="NAME", shell_complete=GROUPS, help="The new group.")
@click.option("--out", is_flag=True, help="Remove them from their group.")
@connected
def move(client: ApiClient, workers: tuple[str, ...], group: str | None, out: bool, as_json: bool) -> None:
    """Move workers to a group."""
    if (group is None) is not out:
        raise UsageError("expected either --group NAME or --out")
    client.send("POST", "/move", {"workers": list(workers), "group": group})
    _echo(f"{', '.join(workers)} → {group or 'no group'}", None, as_json)


def _group_action(action: str, meaning: str, done: str, *options: Any) -> click.Command:
    @connected
    def act(client: ApiClient, name: str, as_json: bool, wait: bool, when_free: bool = False) -> int | None:
        what = "queue" if when_free else action
        answer = client.send("POST", f"/groups/{segment(name)}/{what}")
        phase, run = answer["group"]["phase"], answer["group"]["run_number"]
        result = ("queued" if when_free else done) if answer["changed"] else "nothing to do"
        now = "" if result == phase else f", now {phase}"
        if not wait:
            _echo(f"{name}: {result}{now} (run {run})", answer, as_json)
            return None
        click.echo(f"{name}: {result}{now} (run {run})", err=True)
        return _waited(client, name, as_json)

    wait = click.option(
        "--wait",
        is_flag=True,
        help="Wait until it ends. Exit code: 0 finished (or stopped, for stop), 1 failed, 3 stopped.",
    )
    argument = click.argument("name", shell_complete=GROUPS)
    return click.command(action, help=meaning)(argument(flags(wait, *options)(act)))


def _waited(client: ApiClient, name: str, as_json: bool) -> int:
    """Wait until a group ends; return the exit code for how it ended."""
    while (group := client.get(f"/groups/{segment(name)}"))["phase"] not in _ENDS:
        time.sleep(_AGAIN_S)
    text = group["phase"]
    if failure := group["failure"]:
        text += f": {failure['worker'] or ''} {failure['text']}"
    _echo(f"{name}: {text} (run {group['run_number']})", group, as_json)
    if failure and not as_json:
        print_verdict(failure["verdict"])
    stopping = click.get_current_context().command.name == "stop"
    return 0 if stopping else _ENDS[group["phase"]]


_AGAIN_S = 1.0
_ENDS = {"idle": 3, "finished": 0, "failed": 1, "stopped": 3}

start = _group_action(
    "start",
    "Start all workers of a group.",
    "starting",
    click.option("--when-free", is_flag=True, help="Queue it: it starts when enough workers are free."),
)
stop = _group_action("stop", "Stop all workers of a group.", "stopping")
restart = _group_action("restart", "Stop all workers of a group and start them again.", "restarting")


@click.command()
@click.argument("name", shell_complete=GROUPS)
@connected
def delete(client: ApiClient, name: str, as_json: bool) -> None:
    """Delete a group that is not running. Its workers are then in no group."""
    client.send("DELETE", f"/groups/{segment(name)}")
    _echo(f"{name}: deleted", None, as_json)


@click.command()
@click.argument("node", shell_complete=NODES)
@connected
def forget(client: ApiClient, node: str, as_json: bool) -> None:
    """Forget a node that is gone."""
    client.send("DELETE", f"/nodes/{segment(node)}")
    _echo(f"{node}: forgotten", None, as_json)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…", shell_complete=NODES)
@click.option("--end", is_flag=True, help="Allow new starts there again.")
@connected
def drain(client: ApiClient, nodes: tuple[str, ...], end: bool, as_json: bool) -> None:
    """Allow no new starts on nodes; what runs there goes on."""
    for node in nodes:
        answer = client.send("PUT", f"/nodes/{segment(node)}/drain", {"drained": not end})
        _echo(f"{node}: {'no longer drained' if end else 'drained'}", answer, as_json)


@click.command()
@click.argument("name", shell_complete=GROUPS)
@click.argument("users", nargs=-1, metavar="[USER…]")
@click.option("--everyone", is_flag=True, help="Every operator may change and start it.")
@connected
def owners(client: ApiClient, name: str, users: tuple[str, ...], everyone: bool, as_json: bool) -> None:
    """Print who, besides admins, may change and start a group. With USERs, set them."""
    path = f"/groups/{segment(name)}"
    settings = client.get(path)["settings"]
    if users or everyone:
        if users and everyone:
            raise UsageError("expected either USERs or --everyone")
        settings = client.send("PUT", f"{path}/settings", settings | {"owners": list(users)})["settings"]
    if as_json:
        print_json(settings["owners"])
    else:
        click.echo("\n".join(settings["owners"]) or "every operator")


@click.command()
@click.argument("node", shell_complete=NODES)
@connected
def release(client: ApiClient, node: str, as_json: bool) -> None:
    """Release a node from quarantine."""
    answer = client.send("POST", f"/nodes/{segment(node)}/release")
    _echo(f"{node}: its agent will release it", answer, as_json)


def _echo(text: str, answer: object, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(text, err=True)
