"""The next generation of a group: its rank table and commands, or why it cannot start. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from platform_launch.errors import shown_list
from platform_launch.procguard.api.ranks import RankTable, WorkerName, assign
from platform_launch.procguard.api.refused import problem
from platform_launch.procguard.api.shapes import Problem
from platform_launch.procguard.api.shapes.groups import GroupSettings
from platform_launch.procguard.core.group import CannotStartError, GroupRun
from platform_launch.procguard.core.registry import Members, WorkerSnapshot

HIGHEST_GENERATION = 2**31 - 1
"""The largest generation a message can carry."""


def rank_table(settings: GroupSettings, workers: tuple[WorkerName, ...], members: Members) -> RankTable:
    """Assign the ranks, with everything that prevents a start, including problems of the command."""
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
    problems = [found for found in (_problem_of_command(settings.command, ranked, members),) if found]
    for code, nodes in (
        ("node-drained", _nodes(ranked, members, lambda one: one.drained)),
        ("node-quarantined", _nodes(ranked, members, lambda one: one.quarantined)),
    ):
        if nodes:
            problems.append(problem(code, nodes=shown_list(nodes)))
    if known := _foreign_processes(ranked, members, known=True):
        if not settings.shared_gpus:
            problems.append(known)
        else:
            table = table.but(notes=(*table.notes, known))
    if unknown := _foreign_processes(ranked, members, known=False):  # in a container, those of the host
        table = table.but(notes=(*table.notes, unknown))
    return table.but(problems=(*table.problems, *problems)) if problems else table


def freeze(
    settings: GroupSettings, workers: tuple[WorkerName, ...], members: Members, after: int
) -> GroupRun:
    """Return the run that would start now. Raises CannotStartError.

    Its generation is higher than ``after`` and than any generation one of the workers ever had: a worker from
    another group must not confuse a new order with an old one.
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
    """Return the nodes of the selected workers, by name."""
    return sorted({worker.node for worker in workers if worker in members and chosen(members[worker])})


def _unfit(settings: GroupSettings, workers: Iterable[WorkerName], members: Members) -> list[str]:
    """Return the nodes that spares should replace: drained, bad, or with a silent worker."""
    return _nodes(
        workers,
        members,
        lambda one: one.drained or one.quarantined or one.unfit or one.silent_s > settings.silent_after_s,
    )


def _foreign_processes(ranked: Iterable[WorkerName], members: Members, *, known: bool) -> Problem | None:
    """Return the processes on the GPUs that belong to no run of their agent, with known or unknown users."""
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
    return problem("gpus-held", processes=processes)


def _too_high(workers: tuple[WorkerName, ...], members: Members, generation: int) -> Problem:
    names = shown_list([str(worker) for worker in workers if _highest(members[worker]) + 1 == generation])
    return problem("generation-too-high", workers=names, generation=str(generation - 1))


def _highest(member: WorkerSnapshot) -> int:
    return max(member.generation, member.report.generation if member.report else 0)


def _split(command: str) -> list[str] | None:
    """Return the words of a command, None if it cannot be split."""
    try:
        return shlex.split(command)
    except ValueError:
        return None


def _problem_of_command(command: str, ranked: Iterable[WorkerName], members: Members) -> Problem | None:
    words = _split(command)
    if words is None:
        return problem("bad-command", command=command[:200])
    if words:
        return None
    without = _nodes(ranked, members, lambda one: not one.command)
    return problem("no-command", nodes=shown_list(without)) if without else None
