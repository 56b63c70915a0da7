"""The next generation of a group: its rank table and commands, or why it has none. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from platform_launch.errors import shown, shown_list
from platform_launch.procguard.api.ranks import RankTable, WorkerName, assign
from platform_launch.procguard.api.shapes import Problem
from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.core.group import CannotStartError, GroupRun
from platform_launch.procguard.core.snapshot import Members, WorkerSnapshot

HIGHEST_GENERATION = 2**31 - 1
"""What a message can hold."""


def rank_table(settings: GroupSettings, workers: tuple[WorkerName, ...], members: Members) -> RankTable:
    """Give out the ranks, with all that speaks against a start: the command's problems as well."""
    table = assign(
        workers,
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        world_size=settings.world_size,
        kind=settings.kind,
        aliases={worker.node: members[worker].names for worker in workers if worker in members},
        avoided=_unfit(settings, workers, members),
    )
    ranked = [place.worker for place in table.places] or workers
    found = (
        _problem_of_command(settings.command, ranked, members),
        _drained(ranked, members),
        _quarantined(ranked, members),
    )
    problems = [problem for problem in found if problem is not None]
    if held := _held(ranked, members, known=True):
        if not settings.shared_gpus:
            problems.append(held)
        else:
            table = table.but(notes=(*table.notes, held))
    if unknown := _held(ranked, members, known=False):  # anybody's: in a container the driver tells host pids
        table = table.but(notes=(*table.notes, unknown))
    return table.but(problems=(*table.problems, *problems)) if problems else table


def freeze(
    settings: GroupSettings, workers: tuple[WorkerName, ...], members: Members, after: int
) -> GroupRun:
    """Return the run that a start now would be. Raises CannotStartError.

    Its generation is higher than ``after`` and than any that one of the workers ever had: a worker that comes
    from another group must not take a new order for an old one.
    """
    table = rank_table(settings, workers, members)
    if table.problems:
        raise CannotStartError(table.problems)
    known = [_highest(members[worker]) for worker in workers if worker in members]
    generation = max([after, *known]) + 1
    if generation > HIGHEST_GENERATION:
        raise CannotStartError((_too_high(workers, members, generation),))
    own = tuple(_split(settings.command) or ())
    nodes = {place.worker.node: place.worker for place in table.places}
    return GroupRun(
        generation=generation,
        settings=settings,
        table=table,
        commands={node: own or members[worker].command for node, worker in nodes.items()},
    )


def _nodes(
    workers: Iterable[WorkerName], members: Members, chosen: Callable[[WorkerSnapshot], bool]
) -> list[str]:
    """Return the nodes of the workers that are chosen by what is known of them, by name."""
    return sorted({worker.node for worker in workers if worker in members and chosen(members[worker])})


def _unfit(settings: GroupSettings, workers: Iterable[WorkerName], members: Members) -> list[str]:
    """Return the nodes that a spare should stand in for: drained, bad, or with a worker that is not heard."""
    return _nodes(
        workers,
        members,
        lambda one: one.drained or one.quarantined or one.unfit or one.silent_s > settings.silent_after_s,
    )


def _quarantined(ranked: Iterable[WorkerName], members: Members) -> Problem | None:
    if not (held := _nodes(ranked, members, lambda one: one.quarantined)):
        return None
    names = shown_list(held)
    return Problem(
        "node-quarantined",
        f"{names}: in quarantine, nothing new starts there",
        "add a spare, take its workers out of the group, or release it on the page of nodes",
        {"nodes": names},
    )


def _held(ranked: Iterable[WorkerName], members: Members, *, known: bool) -> Problem | None:
    """List the processes on the GPUs that belong to no run of their agent, of users who are known or not."""
    found = {
        (worker.node, process.pid): process
        for worker in ranked
        if worker in members
        for process in members[worker].gpus_held
        if bool(process.user) is known
    }
    if not found:
        return None
    texts = [
        f"{node} GPU {one.gpu}: {one.user or '?'} {one.name} (pid {pid}"
        + (")" if one.memory_gib is None else f", {one.memory_gib:.1f} GiB)")
        for (node, pid), one in sorted(found.items())
    ]
    processes = "; ".join(texts[:8]) + (f"; {len(texts) - 8} more" if len(texts) > 8 else "")
    return Problem(
        "gpus-held",
        f"other people's processes hold the GPUs: {processes}",
        "ask them to end, take other workers, or set that the group shares its GPUs",
        {"processes": processes},
    )


def _drained(ranked: Iterable[WorkerName], members: Members) -> Problem | None:
    if not (drained := _nodes(ranked, members, lambda one: one.drained)):
        return None
    names = shown_list(drained)
    return Problem(
        "node-drained",
        f"{names}: drained, nothing new starts there",
        "take its workers out of the group, or end the drain on the page of nodes",
        {"nodes": names},
    )


def _too_high(workers: tuple[WorkerName, ...], members: Members, generation: int) -> Problem:
    names = shown_list([str(worker) for worker in workers if _highest(members[worker]) + 1 == generation])
    return Problem(
        "generation-too-high",
        f"{names}: generation reported: {generation - 1}, expected less",
        "its agent's folder is damaged: stop that agent, remove the folder and start it again",
        {"workers": names, "generation": str(generation - 1)},
    )


def _highest(member: WorkerSnapshot) -> int:
    return max(member.generation, member.report.generation if member.report else 0)


def _split(command: str) -> list[str] | None:
    """Return the words, or None where they cannot be told apart."""
    try:
        return shlex.split(command)
    except ValueError:
        return None


def _problem_of_command(command: str, ranked: Iterable[WorkerName], members: Members) -> Problem | None:
    words = _split(command)
    if words is None:
        return Problem(
            "bad-command",
            f"the command {shown(command)} cannot be split into words",
            "close every quotation mark; write a quotation mark that is meant as such as \\'",
            {"command": command[:200]},
        )
    if words:
        return None
    if not (without := _nodes(ranked, members, lambda one: not one.command)):
        return None
    names = shown_list(without)
    return Problem(
        "no-command",
        f"no command: neither the group nor the agent of {names} names one",
        "enter the group's command, or start those agents with --command",
        {"nodes": names},
    )
