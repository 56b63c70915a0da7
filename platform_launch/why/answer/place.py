"""Where it happened, from the event's lines, launchers, schedulers and the table of the ranks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace

from platform_launch.hostlist import short_name
from platform_launch.text import Phrase, joined
from platform_launch.why.lines.line import NOWHERE, Location
from platform_launch.why.lines.location_patterns import names_a_machine
from platform_launch.why.messages.signatures import SignatureTrait
from platform_launch.why.note import Note, NoteValue, counted_off, note, ranks_named
from platform_launch.why.reading.collectives import Collectives
from platform_launch.why.reading.endings import Ending
from platform_launch.why.reading.events import NodeEvents, Occurrence, all_events, first_to_end
from platform_launch.why.reading.homes import Homes

_CAME_IN_VAIN = frozenset(("barrier_absent", "group_barrier_absent", "horovod_stall"))
_LOST = frozenset(("connection_lost", "store_lost"))
_CLOSE_LINES = 8
_MOST_NAMED = 8
_MOST_COMPARED = 64
# How NCCL and torch's store name the other end of a connection.
_PEER = re.compile(r"(?P<host>[\w.:-]*\w)<\d{1,5}>|\[(?:::ffff:)?(?P<store>[\w.:-]*\w)\]:\d{1,5}")


def fill_place(
    event: Occurrence, ending: Ending | None, nodes: Sequence[NodeEvents]
) -> tuple[Location, list[Note]]:
    """Return where an event happened, as far as the logs show, and notes about it."""
    where, notes = event.where, list[Note]()
    ranks = {place.rank for place in event.wheres if place.rank is not None}
    if ending is not None and ranks <= {ending.where.rank}:
        process = Location(rank=ending.where.rank, local_rank=ending.where.local_rank)
        if event.of_one_process and where.rank is None:
            where = where.filled(process)
        elif not event.of_one_process and _is_the_only_one_raised(event, nodes):
            notes.append(note("first-of-several", place=process.note))
        where = where.filled(Location(host=ending.where.host))
    first = first_to_end(nodes)
    if first in ranks:
        # If several ranks report the same, it is chance which of them comes first.
        where = next(place for place in event.wheres if place.rank == first)
    table = Collectives()
    for node_events in nodes:
        table.merge(node_events.collectives)
    behind: int | None = None
    reason: Note | None = None
    came_in_vain = event.signature.id in _CAME_IN_VAIN
    differ = event.signature.id == "collective_mismatch"
    if event.signature.has(SignatureTrait.WAITED) or differ:
        behind, reason = table.finding()
        if differ and behind is None:
            reason = None  # the two that the event itself compares
    elif came_in_vain:
        behind, reason = table.absent()
    if (named := event.details.get("missing ranks", "")).isdecimal():
        behind = int(named)
    if reason is not None:
        notes.append(reason)
    if gone := _host_that_closed(event):
        notes += [note("lost-by", place=where_at_home(where, nodes).note)] if where != NOWHERE else []
        where = Location(host=gone)
    if behind is not None:
        where = where if behind == where.rank else Location(rank=behind)
        if differ:
            event.details.clear()  # of the rank that reports it, with this one for its peer
    elif came_in_vain or (reason is not None and reason.id == "ran-another"):
        where = NOWHERE
    elif table.still_runs is not None and table.still_runs not in ranks:
        notes.append(note("no-timeout", ranks=ranks_named([table.still_runs])))
        where = _task(table.still_runs, nodes)
    steps = _steps(nodes)
    # The exit code of a task's shell shows which signal ended its command.
    steps = [step for step in steps if step.exit_code in event.signature.exit_codes] or steps
    ended_all = event.signature.has(SignatureTrait.ENDS_JOB) and all(step.was_cancelled for step in steps)
    if ended_all or all(_was_only_killed(step, event) for step in steps):
        # Of tasks that only ended with the others, only the host matters, not the number.
        steps = [replace(s, places=tuple(Location(host=p.host) for p in s.places)) for s in steps]
    where = _with_steps(where, steps)
    # Another line may show which rank has the process id in this one.
    where = where.filled(_homes(nodes).of_process(where.host, event.shown))
    where = where_at_home(where, nodes)
    if where == Location(host=where.host):
        beside = _beside(event, nodes)
        where = beside if beside is not None and where.host in (None, beside.host) else where
    return where, notes


def others_of(event: Occurrence, where: Location) -> Note | None:
    """Name the other processes that show an event (the other hosts, where no process is named)."""
    places = [w for w in event.wheres if w.rank is not None] or [w for w in event.wheres if w != NOWHERE]
    places = list(dict.fromkeys(replace(w, host=_named_alike(w.host, where.host)) for w in places))
    if len(places) <= _MOST_COMPARED:  # another line may describe the same process more fully
        places = [w for w in places if not any(w != one and w.filled(one) == one for one in places)]
    here = [w for w in places if w.filled(where) == where.filled(w)]
    others = [w for w in places if w not in here] if len(here) == 1 else places
    if len(places) < 2 or not others:
        return None
    named: dict[str, NoteValue] = {}
    for name in ("node", "pod", "host", "task", "worker", "rank", "local_rank", "gpu"):
        values = {getattr(w, name) for w in others if name != "local_rank" or w.rank is None} - {None}
        if values and values != {getattr(where, name)}:
            word = name.replace("_", " ").replace("gpu", "GPU")
            text = _numbered(values) if isinstance(next(iter(values)), int) else _some(values)
            named[word if len(values) == 1 else f"{word}s"] = text
    return Note("place", named) if named else None


def ended_alike(event: Occurrence, nodes: Sequence[NodeEvents]) -> set[Location]:
    """Return the processes that ended in the same way and the same second as the first one, if an event says
    how.

    torchrun itself ends those that are left with SIGTERM.
    """
    codes = set(event.signature.exit_codes) - {-signal.SIGTERM}
    endings = [e for n in nodes for e in n.episode.endings if e.exit_code in codes and e.time]
    first = {(ending.exit_code, ending.time) for ending in endings if ending.is_root}
    return {ending.where for ending in endings if (ending.exit_code, ending.time) in first}


def shown_elsewhere(event: Occurrence, nodes: Sequence[NodeEvents]) -> set[Location]:
    """Return where nodes, pods and tasks other than an event's own show the same."""
    return {where for other in all_events(nodes) if other.kind == event.kind for where in other.wheres}


def _is_the_only_one_raised(event: Occurrence, nodes: Sequence[NodeEvents]) -> bool:
    """Return whether no process ended with another exception: then the first to end raised this one too."""
    return event.raised is not None and not any(one.is_proof for one in all_events(nodes) if one is not event)


def _was_only_killed(step: Ending, event: Occurrence) -> bool:
    """Return whether a task was killed although the event kills nothing: it had not failed itself."""
    kills = event.signature.id == "killed" or "killed" in event.signature.explains
    return step.exit_code == -signal.SIGKILL and not kills


def _host_that_closed(event: Occurrence) -> str | None:
    """Return the host of the peer that closed a connection, unless it is the event's own."""
    peer = _PEER.fullmatch(event.details.get("peer", ""))
    host = (peer["host"] or peer["store"]) if peer is not None else None
    if host is None or event.signature.id not in _LOST or not names_a_machine(host):
        return None
    return host if _named_alike(host, event.where.host) != event.where.host else None


def _named_alike(host: str | None, known: str | None) -> str | None:
    """Return a host by its known name, which may have the domain that the other name lacks."""
    return known if host and known and short_name(host) == short_name(known) else host


def common_place(places: Sequence[Location]) -> Location:
    """Return what places have in common: one process, else one host, else nothing."""
    if len(set(places)) == 1:
        return places[0]
    hosts = {place.host for place in places}
    return Location(host=hosts.pop()) if len(hosts) == 1 else NOWHERE


def who_ended(where: Location, nodes: Sequence[NodeEvents], *, process_known: bool = True) -> list[Note]:
    """Note which tasks ended with an error, if the scheduler lists more than the answer names."""
    by_host: dict[tuple[str, int], list[int]] = {}
    for step in _steps(nodes):
        for place in step.places:
            if place.host and (number := _number(place)) is not None:
                by_host.setdefault((place.host, step.exit_code), []).append(number)
    listed = {short_name(host) for host, _ in by_host}
    endings = [e for n in nodes for e in n.episode.endings if not e.by_scheduler]
    named = [e for e in endings if e.where.host and e.where.rank is not None]
    for end in [e for e in named if e.is_root] or named:
        host = end.where.host or ""
        if short_name(host) not in listed:
            by_host.setdefault((host, end.exit_code), []).append(end.where.rank or 0)
    if not by_host:
        return []
    answered = where.host in {host for host, _ in by_host} and (process_known or min(by_host)[1] < 0)
    if answered and sum(map(len, by_host.values())) == 1:
        return []
    tasks = [
        _ended(_numbered(numbers), host, code)
        for (host, code), numbers in list(by_host.items())[:_MOST_NAMED]
    ]
    if len(by_host) > _MOST_NAMED:
        return [note("tasks-ended-cut", tasks=tasks, more=len(by_host) - _MOST_NAMED)]
    return [note("tasks-ended", tasks=tasks)]


def _beside(event: Occurrence, nodes: Sequence[NodeEvents]) -> Location | None:
    """Return the place where the same exception was caught, or of its consequence in the lines around it."""
    places = {
        place
        for node_events in nodes
        for other in node_events.episode.events.values()
        if other.signature is event.signature
        or (
            other.signature.id in event.signature.explains
            and not other.signature.has(SignatureTrait.WAITED)
            and other.log == event.log
            and abs(other.number - event.number) <= _CLOSE_LINES
        )
        for place in other.wheres
        if place not in (NOWHERE, event.where)
    }
    return places.pop() if len(places) == 1 else None


def where_at_home(where: Location, nodes: Sequence[NodeEvents]) -> Location:
    """Add the host of a process, if another line shows on which host it runs."""
    if where.pod is not None or where.host is not None:
        return where
    homes = _homes(nodes)
    if where.node is not None:
        return where.filled(homes.opened.get(where.node, NOWHERE))
    if where.rank is None:
        return where
    named = (place.host for n in nodes for place in n.places if place.rank == where.rank)
    hosts = {host for host in (homes.of_rank(where.rank).host, *named) if host}
    return replace(where, host=max(hosts, key=len)) if len(set(map(short_name, hosts))) == 1 else where


def _homes(nodes: Sequence[NodeEvents]) -> Homes:
    homes = Homes()
    for node_events in nodes:
        homes.merge(node_events.homes)
    return homes


def _steps(nodes: Sequence[NodeEvents]) -> list[Ending]:
    """Return what the scheduler says about ended tasks; those it ended itself only if there are no others."""
    steps = [step for node_events in nodes for step in node_events.episode.steps]
    return [step for step in steps if not step.was_cancelled] or steps


def _with_steps(where: Location, steps: Sequence[Ending]) -> Location:
    places = [place for step in steps for place in step.places]
    hosts = {place.host for place in places}
    if where.host is not None:
        here = [place for place in places if place.host == where.host]
        return where.filled(here[0]) if len(here) == 1 and where.rank is None else where
    if len(hosts) > 1 and where.rank is not None:
        # A task that srun started itself is a rank.
        hosts = {place.host for place in places if where.rank in (place.task, place.rank)}
    elif where.rank is not None and all(where.rank < (_number(place) or 0) for place in places):
        return where  # neither a task of these nor started by one
    if len(hosts) == 1:
        where = where.filled(Location(host=hosts.pop()))
    return where.filled(places[0]) if len(places) == 1 and where.rank is None else where


def _task(number: int | None, nodes: Sequence[NodeEvents]) -> Location:
    """Return a task by its number, with its host if the scheduler says how it ended."""
    places = {place for one in nodes for step in one.episode.steps for place in step.places}
    return next((place for place in places if place.task == number), Location(task=number))


def _number(place: Location) -> int | None:
    """Return the number of a task, else its rank, None if it has none."""
    return place.task if place.task is not None else place.rank


def _numbered(numbers: Iterable[int]) -> str:
    text, more = counted_off(sorted(set(numbers)))
    return Phrase("{names} …", names=text) if more else text


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    text = joined(ordered[:_MOST_NAMED])
    return Phrase("{names} …", names=text) if len(ordered) > _MOST_NAMED else text


def _ended(tasks: str, host: str, code: int) -> Note:
    if code < 0:
        return note("killed", tasks=tasks, host=host, signal=-code)
    return note("exited", tasks=tasks, host=host, code=code)
