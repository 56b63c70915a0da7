"""Where it happened, from the event's lines, launchers, schedulers and the table of the ranks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace

from platform_launch.text import Phrase, joined
from platform_launch.why.lines.line import NOWHERE, Location
from platform_launch.why.lines.location_patterns import names_a_machine
from platform_launch.why.messages.signatures import SignatureRole, SignatureTrait
from platform_launch.why.note import Note, NoteValue, counted_off, note, ranks_named
from platform_launch.why.reading.collectives import Collectives
from platform_launch.why.reading.endings import Ending
from platform_launch.why.reading.events import NodeEvents, Occurrence, all_events, first_to_end
from platform_launch.why.reading.homes import Homes

# What a signal did to single processes.
_BY_SIGNAL = frozenset(("interrupted", "killed"))
_BARRIERS = ("barrier_absent", "group_barrier_absent")
_LOST = frozenset(("connection_lost", "store_lost"))
_FEW_LINES_BELOW = 2
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
    one = event.of_one_process or bool(ranks)
    waits = event.signature.id == "horovod_stall"
    if ending is not None and not waits and where.local_rank is None and ranks <= {ending.where.rank}:
        said = ending.where
        alone = (
            Location(rank=said.rank, local_rank=said.local_rank) if one and where.rank is None else NOWHERE
        )
        where = where.filled(alone).filled(Location(host=said.host))
        process = Location(rank=said.rank, local_rank=said.local_rank)
        if not one and process != NOWHERE and _is_the_only_one_raised(event, nodes):
            notes.append(note("first-of-several", place=process.note))
    first = first_to_end(nodes)
    if first in ranks and event.role is SignatureRole.CAUSE and not event.span.exact:
        # If several ranks report the same, it is chance which of them comes first.
        where = next(place for place in event.wheres if place.rank == first)
    table = Collectives()
    for node_events in nodes:
        table.merge(node_events.collectives)
    behind: int | None = None
    told: Note | None = None
    came_in_vain = waits or event.signature.id in _BARRIERS
    differ = event.signature.id == "collective_mismatch"
    if event.signature.has(SignatureTrait.WAITED) or differ:
        behind, told = table.finding()
        if differ and behind is None:
            told = None  # the two that the event itself compares
    elif came_in_vain:
        behind, told = table.absent()
    if waits and (named := event.details.get("missing ranks", "")).isdecimal():
        behind = int(named)
    if told is not None:
        notes.append(told)
    if gone := _host_that_closed(event, nodes):
        notes += [note("lost-by", place=where_at_home(where, nodes).note)] if where != NOWHERE else []
        where = Location(host=gone)
    if behind is not None and behind != where.rank and not _ends(event):
        where = Location(rank=behind)
        if differ:
            event.details.clear()  # of the rank that reports it, with this one for its peer
    elif behind is None and (came_in_vain or (told is not None and told.id == "ran-another")):
        where = NOWHERE
    timed_out = event.signature.has(SignatureTrait.WAITED) or event.signature.id == "gloo_timeout"
    still = table.still_runs if timed_out and behind is None else None
    if still is not None and still not in ranks:
        notes.append(note("no-timeout", ranks=ranks_named([still])))
        where = _task(still, nodes)
    steps = [] if waits else _steps(nodes)  # those who wait end too
    steps = [step for step in steps if step.line.number == event.number] or steps
    # The exit code of a task's shell shows which signal ended its command.
    steps = [step for step in steps if step.exit_code in event.signature.exit_codes] or steps
    only_ended = _ends(event) and all(step.was_cancelled for step in steps)
    if only_ended or (event.role is SignatureRole.CAUSE and all(_was_only_killed(s, event) for s in steps)):
        # Of tasks that only ended with the others, only the host matters, not the number.
        steps = [replace(s, places=tuple(Location(host=p.host) for p in s.places)) for s in steps]
    where = _with_steps(where, steps, ended=ending is not None)
    if where.rank is None and where.pod is None and where.host == event.where.host:
        # The line has a process id, and another line shows which rank has that id.
        where = where.filled(_homes(nodes).of_process(where.host, event.shown))
    where = where_at_home(where, nodes)
    if where == NOWHERE and event.of_one_process and not came_in_vain:
        where = _beside(event, nodes) or NOWHERE
    elif where == event.where == Location(host=where.host) and event.role is SignatureRole.CAUSE:
        beside = _beside(event, nodes)
        where = beside if beside is not None and beside.host == where.host else where
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
        values = {getattr(w, name) for w in others} - {None}
        told = name == "local_rank" and {"rank", "ranks"} & named.keys()
        if values and values != {getattr(where, name)} and not told:
            word = name.replace("_", " ").replace("gpu", "GPU")
            said = _numbered(values) if isinstance(next(iter(values)), int) else _some(values)
            named[word if len(values) == 1 else f"{word}s"] = said
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
    same = (e for e in all_events(nodes) if e.kind == event.kind and e.role is event.role)
    return {where for other in same for where in other.wheres}


def _ends(event: Occurrence) -> bool:
    """Return whether an event only reports the end of a job or of its processes."""
    return event.signature.has(SignatureTrait.ENDS_JOB) or event.signature.id in _BY_SIGNAL


def _is_the_only_one_raised(event: Occurrence, nodes: Sequence[NodeEvents]) -> bool:
    """Return whether no process ended with another exception: then the first to end raised this one too."""
    return event.raised is not None and not any(one.is_proof for one in all_events(nodes) if one is not event)


def _was_only_killed(step: Ending, event: Occurrence) -> bool:
    """Return whether a task was killed although the event kills nothing: it had not failed itself."""
    kills = event.signature.id == "killed" or "killed" in event.signature.explains
    return step.exit_code == -signal.SIGKILL and not kills


def _host_that_closed(event: Occurrence, nodes: Sequence[NodeEvents]) -> str | None:
    """Return the host of the peer that closed an NCCL connection, unless it reported the same before."""
    peer = _PEER.fullmatch(event.details.get("peer", ""))
    host = (peer["host"] or peer["store"]) if peer is not None else None
    if host is None or event.signature.id not in _LOST or not names_a_machine(host):
        return None
    name = _short(host)
    suffered = [e for n in nodes for e in n.episode.of_role(SignatureRole.CONSEQUENCE) if e is not event]
    before = (e.where.host for e in suffered if e.log == event.log and e.start < event.start)
    return host if name not in {_short(host or "") for host in (event.where.host, *before)} else None


def _short(host: str) -> str:
    """Return a host's name without its domain, and an address as it is."""
    return host if host[:1].isdigit() else host.partition(".")[0]


def _named_alike(host: str | None, known: str | None) -> str | None:
    """Return a host by its known name, which may have the domain that the other name lacks."""
    if host is None or known is None:
        return host
    return known if host == _short(known) or _short(host) == known else host


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
            number = place.task if place.task is not None else place.rank
            if place.host and number is not None:
                by_host.setdefault((place.host, step.exit_code), []).append(number)
    endings = [e for n in nodes for e in n.episode.endings if not e.by_scheduler]
    named = [e for e in endings if e.where.host and e.where.rank is not None]
    listed = {host for host, _ in by_host}
    for root in [e for e in named if e.is_root] or named:
        if listed.isdisjoint((root.where.host, (root.where.host or "").partition(".")[0])):
            by_host.setdefault((root.where.host or "", root.exit_code), []).append(root.where.rank or 0)
    told = where.host in {host for host, _ in by_host} and (process_known or min(by_host)[1] < 0)
    if not by_host or (_single(by_host) and told):
        return []
    said = [
        _ended(_numbered(tasks), host, code) for (host, code), tasks in list(by_host.items())[:_MOST_NAMED]
    ]
    if len(by_host) > _MOST_NAMED:
        return [note("tasks-ended-cut", tasks=said, more=len(by_host) - _MOST_NAMED)]
    return [note("tasks-ended", tasks=said)]


def _beside(event: Occurrence, nodes: Sequence[NodeEvents]) -> Location | None:
    """Return the place where the same exception was caught, or of its consequence in the lines around it.

    If the line names no process, a cut-off traceback right below it shows who wrote it.
    """
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
        or (
            other.signature.id == "traceback_cut"
            and event.raised is None
            and other.log == event.log
            and 0 < other.start - event.last <= _FEW_LINES_BELOW
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
    hosts = {host for host in (homes.of_rank(where.rank).host,) if host}
    hosts |= {
        ending.where.host
        for node_events in nodes
        for ending in node_events.episode.endings
        if ending.where.rank == where.rank and ending.where.host
    }
    hosts |= {w.host for event in all_events(nodes) for w in event.wheres if w.rank == where.rank and w.host}
    return replace(where, host=max(hosts, key=len)) if len(set(map(_short, hosts))) == 1 else where


def _homes(nodes: Sequence[NodeEvents]) -> Homes:
    homes = Homes()
    for node_events in nodes:
        homes.merge(node_events.homes)
    return homes


def _single(by_host: dict[tuple[str, int], list[int]]) -> bool:
    return sum(len(tasks) for tasks in by_host.values()) == 1


def _steps(nodes: Sequence[NodeEvents]) -> list[Ending]:
    """Return what the scheduler says about ended tasks; those it ended itself only if there are no others."""
    steps = [step for node_events in nodes for step in node_events.episode.steps]
    return [step for step in steps if not step.was_cancelled] or steps


def _with_steps(where: Location, steps: Sequence[Ending], *, ended: bool) -> Location:
    places = [place for step in steps for place in step.places]
    hosts = {place.host for place in places}
    if where.pod is not None or not places:
        return where
    tasks = {place.task for step in steps if step.line.where.task is None for place in step.places} - {None}
    if where.task is not None and tasks and where.task not in tasks:
        return where  # of another task, and so perhaps of another host
    if where.host is not None:
        here = [place for place in places if place.host == where.host]
        return where.filled(here[0]) if len(here) == 1 and where.rank is None else where
    if len(hosts) == 1:
        if where.rank is not None and all(where.rank < _number(place) for place in places):
            return where  # neither a task of these nor started by one
        where = where.filled(Location(host=places[0].host))
        if len(places) == 1 and where.rank is None:
            where = where.filled(places[0])
    elif where.rank is not None and not ended:
        # A task that srun started itself is a rank.
        same = {place.host for place in places if where.rank in (place.task, place.rank)}
        if len(same) == 1:
            where = where.filled(Location(host=same.pop()))
    return where


def _task(number: int | None, nodes: Sequence[NodeEvents]) -> Location:
    """Return a task by its number, with its host if the scheduler says how it ended."""
    places = {place for one in nodes for step in one.episode.steps for place in step.places}
    return next((place for place in places if place.task == number), Location(task=number))


def _number(place: Location) -> int:
    """Return the number of a task; its rank, or 0, if it has none."""
    return next((number for number in (place.task, place.rank) if number is not None), 0)


def _numbered(numbers: Iterable[int]) -> str:
    said, more = counted_off(sorted(set(numbers)))
    return Phrase("{said} …", said=said) if more else said


def _some(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    said = joined([first, *others[: _MOST_NAMED - 1]])
    return Phrase("{said} …", said=said) if len(others) >= _MOST_NAMED else said


def _ended(tasks: str, host: str, code: int) -> Note:
    if code < 0:
        return note("killed", tasks=tasks, host=host, signal=-code)
    return note("exited", tasks=tasks, host=host, code=code)
