"""``procguard ctl groups``, ``nodes``, ``workers``, ``runs``, ``ranks``, ``inspect`` and ``events``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from platform_launch.cli.output import print_json, read_text
from platform_launch.cli.procguard.ctl.client import GROUPS, ApiClient, connected, problem_here, segment
from platform_launch.cli.procguard.ctl.tables import local, print_table, show
from platform_launch.console.languages import current, translate
from platform_launch.errors import UsageError, shown_list
from platform_launch.sentences import Sentence
from platform_launch.text import Phrase, counted, escaped, joined

_SOME = 6
ROLES = ("viewer", "operator", "admin")


@click.command()
@click.argument("name", required=False, shell_complete=GROUPS)
@click.option("--state", metavar="STATE", help="Only groups in this state, such as running or queued.")
@click.option("--mine", is_flag=True, help="Only groups that you own or started last.")
@connected
def groups(client: ApiClient, name: str | None, state: str | None, mine: bool, as_json: bool) -> None:
    """List groups. With NAME, also show what that group waits for and why it failed."""
    found = [client.get(f"/groups/{segment(name)}")] if name else client.get("/groups")
    me = client.get("/me")["name"] if mine else ""
    found = [
        group
        for group in found
        if state in (None, group["phase"]) and (not mine or me in (group["requested_by"], *_owners(group)))
    ]
    titles = ("group", "state", "since", "owner", "run", "restarts", "workers", "master", "about")
    empty = translate("no groups; create one: procguard ctl create NAME")
    show(found[0] if name and found else found, as_json, titles, map(_group_row, found), empty)
    if name and found and not as_json and (failure := found[0]["failure"]):
        print_verdict(failure)


def failure_text(failure: dict[str, Any]) -> str:
    """Return why a group failed, with the worker that failed first."""
    from platform_launch.procguard.api.english import message
    from platform_launch.procguard.api.shapes.groups import GroupFailure
    from platform_launch.procguard.core.failures import whose

    try:
        return escaped(translate(message(whose(GroupFailure.model_validate(failure)))))
    except (KeyError, ValueError):  # of another version
        return escaped(": ".join(filter(None, (failure["worker"], failure["text"]))))


def text_here(of: dict[str, Any], english: str) -> str:
    """Return a sentence of the API in the reader's language; its English if its code is unknown."""
    from platform_launch.procguard.api.english import message

    try:
        return escaped(translate(message(Sentence.read({"code": of["code"], "values": of["values"]}))))
    except (KeyError, ValueError):
        return escaped(english)


def verdict_lines(of: dict[str, Any]) -> list[str]:
    """Return a verdict in the reader's language; its English if it comes from another version."""
    from pydantic import TypeAdapter, ValidationError

    from platform_launch.why.answer.verdict import Verdict

    if of.get("why"):
        with suppress(ValidationError):
            return TypeAdapter(Verdict).validate_python(of["why"]).lines()
    return str(of["verdict"]).splitlines()


def print_verdict(of: dict[str, Any]) -> None:
    """Print a whole verdict below a table, whose cells show only its first line."""
    for line in verdict_lines(of):
        click.echo(f"  {escaped(line)}")


def _owners(group: dict[str, Any]) -> list[str]:
    owners: list[str] = group["settings"]["owners"]
    return owners


def _group_row(group: dict[str, Any]) -> tuple[object, ...]:
    settings = group["settings"]
    master = f"{settings['master_addr'] or '?'}:{settings['master_port']}"
    return (
        group["name"],
        group["phase"],
        local(group["phase_since"]),
        translate(joined(_owners(group))) or "-",
        group["run_number"] or "-",
        f"{group['restarts_used']}/{settings['max_restarts']}",
        len(group["workers"]),
        master,
        _about(group),
    )


def _about(group: dict[str, Any]) -> tuple[str, ...]:
    failure = group["failure"]
    parts: list[str] = []
    if failure:
        parts += (failure_text(failure), *verdict_lines(failure)[:1])
    if group["queue_place"]:
        parts.append(translate(Phrase("number {n} in the queue", n=group["queue_place"])))
    if group["silent"]:
        parts.append(translate(Phrase("silent: {workers}", workers=_some(group["silent"]))))
    if before := group["previous_failure"]:
        failed = Phrase("run {run} failed: {failure}", run=before["run_number"], failure=failure_text(before))
        parts.append(translate(failed))
    if deadline := group["deadline"]:
        seconds = f"{deadline['in_s']:.0f}"
        fails, restarts = Phrase("fails in {s} s", s=seconds), Phrase("restarts in {s} s", s=seconds)
        parts.append(translate(fails if deadline["what"] == "fails" else restarts))
    if group["waiting_for"]:
        parts.append(translate(Phrase("waiting for {workers}", workers=_some(group["waiting_for"]))))
    return tuple(parts)


def _some(workers: list[str]) -> Phrase:
    """Return the first few workers, and how many more there are."""
    names, more = joined(workers[:_SOME]), len(workers) - _SOME
    return names if more <= 0 else Phrase("{names} and {n} more", names=names, n=more)


@click.command()
@click.option(
    "--state", metavar="STATE", help="Only nodes that are busy, free, silent, drained or quarantined."
)
@connected
def nodes(client: ApiClient, state: str | None, as_json: bool) -> None:
    """List nodes, and processes of other users on their GPUs."""
    found = [node for node in client.all("/nodes", "node") if state in (None, _node_state(node))]
    titles = ("node", "state", "labels", "workers", "GPUs", "use", "groups", "heartbeat", "about")
    empty = translate("no nodes; start `procguard agent` on each node")
    show(found, as_json, titles, map(_node_row, found), empty)


def _ago(age: float | None) -> str:
    return translate("never") if age is None else translate(Phrase("{s} s ago", s=f"{age:.0f}"))


def _reason(of: dict[str, Any]) -> str:
    said = of.get("reason_sentence")
    return text_here(said, of["reason"]) if said else str(of["reason"])


def _node_state(node: dict[str, Any]) -> str:
    for state, holds in (
        ("silent", node["silent"]),
        ("quarantined", node["quarantine"]),
        ("drained", node["drained_by"]),
        ("busy", node["counts"].get("running")),
    ):
        if holds:
            return state
    return "free"


def _node_row(node: dict[str, Any]) -> tuple[object, ...]:
    used = [gpu["utilization_percent"] for gpu in node["gpus"] if gpu["utilization_percent"] is not None]
    age = node["heartbeat_age_s"]
    others = tuple(
        f"GPU {one['gpu']}: {one['user'] or '?'} {one['name']} (pid {one['pid']})"
        for one in node["gpu_processes"][:_SOME]
    )
    why = (_reason(node["quarantine"]),) if node["quarantine"] else ()
    return (
        node["node"],
        _node_state(node),
        " ".join(node["labels"]) or "-",
        len(node["workers"]),
        len(node["gpus"]),
        f"{sum(used) / len(used):.0f}%" if used else "-",
        translate(joined(node["groups"])) or "-",
        _ago(age),
        why + others,
    )


@click.command()
@click.option("--add", "added", metavar="NAME", help="Add user NAME, with --role and --password-file.")
@click.option("--change", "changed", metavar="NAME", help="Change --role or --password-file of user NAME.")
@click.option("--remove", "removed", metavar="NAME", help="Remove user NAME.")
@click.option("--role", type=click.Choice(ROLES))
@click.option("--password-file", type=click.Path(path_type=Path), metavar="FILE")
@connected
def users(
    client: ApiClient,
    added: str | None,
    changed: str | None,
    removed: str | None,
    role: str | None,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """List or change users; for admins. On the server's machine, see also `procguard user`."""
    given = {"role": role, "password": read_text(password_file).strip("\r\n") if password_file else None}
    if added and role and password_file:
        client.send("POST", "/users", {"name": added, **given})
    elif changed and (role or password_file):
        client.send("PUT", f"/users/{segment(changed)}", given)
    elif removed:
        client.send("DELETE", f"/users/{segment(removed)}")
    elif added or changed or role or password_file:
        raise UsageError(
            "expected --add NAME --role ROLE --password-file FILE, or --change NAME with one of them"
        )
    found = client.get("/users")
    outside = translate("single sign-on")
    rows = (
        (user["name"], user["role"], local(user["created_at"]), outside if user["external"] else "")
        for user in found
    )
    show(found, as_json, ("user", "role", "since", "about"), rows)


@click.command()
@click.option("--add", "label", metavar="LABEL", help="Create one and print it once.")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="For --add.")
@click.option(
    "--days", type=click.IntRange(1, 366), default=30, show_default=True, help="Lifetime, for --add."
)
@click.option("--end", "ended", metavar="ID", help="Revoke one.")
@connected
def tokens(
    client: ApiClient, label: str | None, role: str, days: int, ended: str | None, as_json: bool
) -> None:
    """List your own API tokens, create one or revoke one."""
    if label is not None:
        made = client.send("POST", "/me/tokens", {"label": label, "role": role, "days": days})
        print_json(made) if as_json else click.echo(made["token"])
        return
    if ended is not None:
        client.send("DELETE", f"/me/tokens/{segment(ended)}")
    found = client.get("/me/tokens")
    rows = ((token["label"], token["role"], local(token["ends_at"]), token["id"]) for token in found)
    show(found, as_json, ("token", "role", "ends", "id"), rows, translate("no tokens"))


@click.command()
@click.option("--group", metavar="NAME", shell_complete=GROUPS, help="Only workers of this group.")
@click.option("--state", metavar="STATE", help="Only workers in this state, such as failed or silent.")
@connected
def workers(client: ApiClient, group: str | None, state: str | None, as_json: bool) -> None:
    """List workers."""
    found = [
        worker
        for worker in client.all("/workers", "worker")
        if (group is None or worker["group"] == group)
        and (state is None or worker["status"] == state or worker["status"].startswith(f"{state}-"))
    ]
    titles = ("worker", "group", "state", "rank", "GPU use", "heartbeat", "restarts", "about")
    empty = translate("no workers; start `procguard agent` on each node")
    show(found, as_json, titles, map(_worker_row, found), empty)


def _worker_row(worker: dict[str, Any]) -> tuple[object, ...]:
    used = [gpu["utilization_percent"] for gpu in worker["gpus"] if gpu["utilization_percent"] is not None]
    age = worker["heartbeat_age_s"]
    state = f"silent ({worker['state']})" if worker["status"] == "silent" else worker["status"]
    code = worker["exit_code"] if worker["state"] == "exited" else None
    return (
        worker["worker"],
        worker["group"] or "-",
        state if code is None else f"{state} {code}",
        "-" if worker["rank"] is None else worker["rank"],
        " ".join(f"{use:.0f}%" for use in used),
        _ago(age),
        worker["restarts"],
        _reason(worker),
    )


@click.command()
@click.argument("name", shell_complete=GROUPS)
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 500), default=20, show_default=True)
@click.option("--cause", metavar="TEXT", help="Only runs whose failure contains this.")
@connected
def runs(
    client: ApiClient, name: str, number: int | None, limit: int, cause: str | None, as_json: bool
) -> None:
    """List a group's runs, newest first. With NUMBER, show that run with its settings and ranks."""
    path = f"/groups/{segment(name)}/runs"
    found = client.get(path, limit=limit, cause=cause) if number is None else client.get(f"{path}/{number}")
    titles = ("run", "outcome", "started by", "start", "end", "world size", "cause")
    empty = translate(Phrase("{name} has not run yet", name=name))
    show(found, as_json, titles, map(_run_row, [found] if number else found), empty)
    if number is None or as_json:
        return
    if found["failure"]:
        print_verdict(found["failure"])
    click.echo()
    print_table(("setting", "value"), map(_setting_row, found["settings"].items()))
    click.echo()
    print_table(("rank", "worker"), ((one["rank"], one["worker"]) for one in found["places"]))


def _setting_row(setting: tuple[str, Any]) -> tuple[str, str]:
    """Return a setting as its flag and the value that flag takes."""
    name, value = setting
    if name == "world_size" and value is None:
        value = "all"
    elif isinstance(value, dict):
        value = " ".join(f"{key}={one}" for key, one in value.items())
    elif isinstance(value, list):
        value = " ".join(map(str, value))
    flag = "env" if name == "environment" else name.removesuffix("_s").replace("_", "-")
    return flag, str(value)


def _run_row(run: dict[str, Any]) -> tuple[object, ...]:
    by = run["requested_by"]
    if run["restart"]:
        by = translate(Phrase("{user} (restart {n})", user=by, n=run["restart"]))
    failure = run["failure"]
    cause = (failure_text(failure), *verdict_lines(failure)[:1]) if failure else ()
    size, outcome = run["world_size"], run["outcome"] or "running"
    return run["number"], outcome, by, local(run["requested_at"]), local(run["ended_at"]), size, cause


@click.command()
@click.argument("name", shell_complete=GROUPS)
@connected
def ranks(client: ApiClient, name: str, as_json: bool) -> None:
    """Show the ranks of the next start, or what prevents it."""
    found = client.get(f"/groups/{segment(name)}/ranks")
    rows = [
        (place["worker"], place["rank"], place["local_rank"], place["node_rank"], len(found["places"]))
        for place in found["places"]
    ]
    titles = ("worker", "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
    show(found, as_json, titles, rows, translate("no ranks can be assigned"))
    for one in () if as_json else (*found["problems"], *found["notes"]):
        text, hint = problem_here(one)
        click.echo(translate(Phrase("{text}: {hint}", text=text, hint=hint) if hint else text))


@click.command()
@click.argument("name", shell_complete=GROUPS)
@click.option(
    "--stacks",
    is_flag=True,
    help="Show the whole stacks of every rank.",
)
@connected
def inspect(client: ApiClient, name: str, stacks: bool, as_json: bool) -> None:
    """Show what all ranks of a running group are doing now."""
    query = f"?language={current()}{'&whole=true' if stacks else ''}"
    found = client.send("POST", f"/groups/{segment(name)}/inspect{query}")
    if as_json:
        print_json(found)
        return
    moved = found["moved_s_ago"]
    ranks, nodes = counted(found["ranks"], "rank"), counted(found["nodes"], "node")
    text = Phrase("{ranks} on {nodes}", ranks=ranks, nodes=nodes)
    if moved is not None:
        text = Phrase("{text}; last output or collective {s} s ago", text=text, s=f"{moved:.0f}")
    click.echo(translate(text))
    for line in (*found["finding"], *found["stacks" if stacks else "lines"]):
        click.echo(escaped(line))
    if found["more_places"] and not stacks:
        click.echo(translate(Phrase("{n} more places (--stacks shows all)", n=found["more_places"])))
    if found["silent"]:
        click.echo(translate(Phrase("no answer from {workers}", workers=shown_list(found["silent"]))))


@click.command()
@click.option("-n", "--number", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--of", "on", metavar="NAME", help="Only events of this group, node or user.")
@click.option("--who", metavar="USER", help="Only events by this user, or `server`.")
@click.option("--action", metavar="ACTION", help="Only events of this kind, such as failed.")
@connected
def events(
    client: ApiClient, number: int, on: str | None, who: str | None, action: str | None, as_json: bool
) -> None:
    """List changes: what, when and by whom, newest first."""
    found = client.get("/events", limit=number, on=on, who=who, action=action)
    rows = [
        (local(one["at"]), one["who"], one["action"], one["object"], text_here(one, one["detail"]))
        for one in found
    ]
    show(found, as_json, ("time", "user", "event", "object", "detail"), rows, translate("no events yet"))
