"""Snapshots of all nodes → who keeps whom waiting, and the paragraph that tells a person so.

Pure. The collectives tell whom the others wait for; stacks and the kernel tell what those are doing. Where no
collective is known (JAX, an old torch), the ranks that stand apart from the large group are the suspects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from platform_launch.errors import shown_list
from platform_launch.observe.activity import Activity, activity_of
from platform_launch.observe.collectives import Waiting, WaitReport, compare, ranks_in_words
from platform_launch.observe.snapshot import ChildSnapshot, NodeSnapshot, RankSnapshot
from platform_launch.observe.stacks import ThreadStack, own_first

_MOST_CULPRITS = 8
_MOST_GROUPS = 8


class FindingKind(str, Enum):
    """``hang``: somebody is stuck; ``busy``: who is waited for works; ``unknown``: nobody can be named."""

    HANG = "hang"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Culprit:
    """A rank that others wait for, or that is stuck by itself.

    ``doing`` says what it does, in a word for programs and in words for people; ``busy`` if that is work.
    ``stack`` holds the lines of its threads, the user's own frames first.
    """

    rank: int
    node_rank: int | None
    host: str
    pid: int
    gpu: str
    doing: str
    words: str
    busy: bool
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = [f"node {self.node_rank}" if self.node_rank is not None else "", self.host]
        where += [f"pid {self.pid}" if self.pid else "", self.gpu]
        place = ", ".join(part for part in where if part)
        return f"rank {self.rank}{f' ({place})' if place else ''} {self.words}"


@dataclass(frozen=True)
class HangFinding:
    """What is known of a job in which nothing moves. ``waiting`` and ``groups`` are lines for people."""

    kind: FindingKind
    culprits: tuple[Culprit, ...]
    waiting: tuple[str, ...]
    groups: tuple[str, ...]
    suspect_ranks: tuple[int, ...]

    def headline(self) -> str:
        """Return the one line that matters."""
        return "; ".join(self.headlines())

    def headlines(self) -> list[str]:
        """Return it as a line for each rank that is named."""
        if not self.culprits:
            return list(self.waiting) or ["no rank can be told from the others: see their stacks"]
        more = len(self.culprits) - _MOST_CULPRITS
        named = [str(culprit) for culprit in self.culprits[:_MOST_CULPRITS]]
        return [*named, f"and {more} more ranks"] if more > 0 else named

    def lines(self) -> list[str]:
        """Return the whole paragraph."""
        lines = [f"  {waiting}" for waiting in self.waiting] if self.culprits else []
        for culprit in self.culprits[:_MOST_CULPRITS]:
            lines += [f"  rank {culprit.rank}:   {line}" for line in culprit.stack]
        return [self.headline(), *lines, *(f"  {group}" for group in self.groups)]

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**asdict(self), "kind": self.kind.value}


def judge(nodes: Sequence[NodeSnapshot], world_size: int, silent_nodes: Mapping[int, str]) -> HangFinding:
    """Say who keeps whom waiting. ``silent_nodes`` did not answer: rank of the node → its name."""
    ranks = {rank.rank: rank for node in nodes for rank in node.ranks}
    home = {rank.rank: node for node in nodes for rank in node.ranks}
    if ranks and not silent_nodes and all(found.state.gone for found in ranks.values()):
        ended = "all ranks have ended, and what started them has not yet"
        return HangFinding(FindingKind.BUSY, (), (ended,), (), ())
    traces = {rank: found.trace for rank, found in ranks.items() if found.trace is not None}
    report = compare(traces, world_size) if traces else WaitReport(())
    suspects = set(report.suspect_ranks) or _stuck_by_themselves(ranks) or _unheard(ranks) or _outliers(ranks)
    suspects |= {rank for rank, found in ranks.items() if found.state.gone}
    if any(ranks[rank].state.gone or ranks[rank].state.stopped for rank in suspects if rank in ranks):
        # What the others lack follows from these.
        suspects = {r for r in suspects if r not in ranks or ranks[r].state.gone or ranks[r].state.stopped}
    culprits = [
        _culprit(rank, ranks.get(rank), home.get(rank), report, silent_nodes) for rank in sorted(suspects)
    ]
    stuck = [culprit for culprit in culprits if not culprit.busy]
    kind = FindingKind.HANG if stuck else FindingKind.BUSY if culprits else FindingKind.UNKNOWN
    return HangFinding(
        kind,
        tuple(stuck or culprits),
        tuple(_waiting_line(waiting, ranks, suspects) for waiting in _telling(report, suspects)),
        tuple(_groups(ranks, {culprit.rank for culprit in culprits})),
        tuple(culprit.rank for culprit in stuck or culprits),
    )


def _telling(report: WaitReport, suspects: set[int]) -> list[Waiting]:
    """Return the operations that wait for the suspects, or all where they name none."""
    naming = [w for w in report.waiting if {*w.behind, *w.stopped, *w.differ} & suspects]
    others = [waiting for waiting in naming or report.waiting if set(waiting.ranks) - suspects]
    return (others if suspects else list(report.waiting))[:_MOST_GROUPS]


def _waiting_line(waiting: Waiting, ranks: Mapping[int, RankSnapshot], suspects: set[int]) -> str:
    group = f" of group {waiting.group.name}" if waiting.group.name not in ("", "0") else ""
    came = [rank for rank in waiting.ranks if rank not in suspects] or list(waiting.ranks)
    places = {str(own) for rank in came if rank in ranks and (main := ranks[rank].main) and (own := main.own)}
    at = f" ({min(places)})" if len(places) == 1 else ""
    lacking = sorted({*waiting.behind, *waiting.stopped, *waiting.differ} & suspects)
    for_whom = f" for {ranks_in_words(lacking)}" if lacking else ""
    wait = "waits" if len(came) == 1 else "wait"
    return f"{ranks_in_words(came)} {wait} in {waiting.operation}{group}{at}{for_whom}"


def _stuck_by_themselves(ranks: Mapping[int, RankSnapshot]) -> set[int]:
    """Return who is stopped or blocked in the kernel, else the few that compute outside a collective."""
    stuck = {rank for rank, found in ranks.items() if found.state.stopped or found.state.state == "D"}
    computing = {rank for rank, found in ranks.items() if found.computes and not _in_collective(found)}
    return stuck or (computing if len(computing) * 2 <= len(ranks) else set())


def _unheard(ranks: Mapping[int, RankSnapshot]) -> set[int]:
    """Return the ranks at the ends of connections whose packets vanish."""
    return {rank for rank, found in ranks.items() if found.unheard}


def _outliers(ranks: Mapping[int, RankSnapshot]) -> set[int]:
    """Return the ranks outside the largest group with equal stacks; none where no group is the largest."""
    places: dict[object, set[int]] = {}
    for rank, found in ranks.items():
        main = found.main
        places.setdefault(main.functions if main is not None else None, set()).add(rank)
    sizes = sorted((len(members) for members in places.values()), reverse=True)
    if len(sizes) < 2 or sizes[0] == sizes[1]:
        # Two equal groups: whoever is not inside a collective stands apart.
        outside = {rank for rank, found in ranks.items() if not _in_collective(found)}
        return outside if 0 < len(outside) < len(ranks) else set()
    return {rank for members in places.values() if len(members) < sizes[0] for rank in members}


def _in_collective(found: RankSnapshot) -> bool:
    activity = activity_of(found.main.frames) if found.main else None
    return activity is not None and activity.id == "collective"


def _culprit(
    rank: int,
    found: RankSnapshot | None,
    node: NodeSnapshot | None,
    report: WaitReport,
    silent_nodes: Mapping[int, str],
) -> Culprit:
    if found is None or node is None:
        silent = shown_list([f"node {number} ({name})" for number, name in sorted(silent_nodes.items())])
        words = (
            f"is not known to any node that answers; {silent} did not" if silent else "is nowhere to be found"
        )
        return Culprit(rank, None, "", 0, "", "absent", words, busy=False)
    doing, words, busy = _doing(found, report)
    gpu = node.gpus.get(found.local_rank or 0, "")
    return Culprit(
        rank, node.node_rank, node.host, found.state.pid, gpu, doing, words, busy, tuple(_stack_lines(found))
    )


def _doing(found: RankSnapshot, report: WaitReport) -> tuple[str, str, bool]:
    """Return what a rank does: a word, words, and whether it works. The surest signs come first."""
    state, main = found.state, found.main
    activity = activity_of(main.frames) if main is not None else None
    at = f" at {main.own}" if main is not None and main.own is not None else ""
    if state.gone:
        return "gone", "has ended, while others wait for it", False
    if state.stopped:
        return "stopped", f"is {state.in_words} (SIGSTOP, or a debugger){at}", False
    if activity is not None and activity.id == "data" and (child := _stuck_child(found)):
        return "data-worker", f"waits for its DataLoader{at}, {_child_in_words(child)}", False
    blocked = f", {state.in_words}" if state.state == "D" else ""
    if state.state == "D" and not found.moving:
        on = f" on {state.waits_for}" if state.waits_for else ""
        doing = f" while it {activity.words}" if activity is not None and activity.lengthy else ""
        return "kernel", f"is {state.in_words}{on}{doing}{at}", False
    if found.gil_held:
        return "gil", f"has a thread that holds the GIL and lets no other run{at}{blocked}", False
    if activity is not None and activity.lengthy:
        return activity.id, f"{activity.words}{at}", True
    # Threads of Python take turns where one calls into C, so that samples of a loop over library calls agree.
    in_library = main is not None and main.frames[0].is_library and activity is None
    if found.computes and (found.moving or in_library):
        return "busy", f"computes{at}", True
    if found.computes:
        return "loop", f"computes and does not leave this place{at}", False
    if found.unheard and (activity is None or activity.id in ("collective", "store")):
        return "network", f"{activity.words if activity else 'waits'}{at}, {_silence(found)}", False
    if activity is not None and activity.id == "collective":
        return _in_a_collective(found, report, activity, at)
    if activity is not None:
        return activity.id, f"{activity.words}{at}", False
    if "nanosleep" in state.wchan:
        return "asleep", f"sleeps{at}", False
    asleep = f" ({state.wchan})" if state.wchan else ""
    others = [thread.own for thread in found.threads if not thread.main and _is_own(thread)]
    lock = f", and another thread at {others[0]}" if others and "futex" in state.wchan else ""
    return "asleep", f"waits{asleep}{at}{lock}", False


def _silence(found: RankSnapshot) -> str:
    first, more = found.unheard[0], len(found.unheard) - 1
    others = f" (and {more} more connection{'s' if more > 1 else ''})" if more else ""
    return (
        f"and {first.remote} does not acknowledge what {first.local} sent it "
        f"{first.attempts + 1} times{others}: packets between the two vanish (firewall, cable, switch, MTU)"
    )


def _in_a_collective(
    found: RankSnapshot, report: WaitReport, activity: Activity, at: str
) -> tuple[str, str, bool]:
    """Say what is wrong with a rank that waits in an operation itself."""
    for waiting in report.waiting:
        if found.rank in waiting.differ:
            mine = next((w.operation for w in report.waiting if found.rank in w.ranks), waiting.operation)
            own = _own_operation(found, waiting) or mine
            return "mismatch", f"is in {own}, others in another operation of the same number{at}", False
        own = _own_operation(found, waiting)
        if found.rank in waiting.stopped or (found.rank in waiting.behind and own is not None):
            said = f"is still in {own}" if own is not None else activity.words
            return (
                "transport",
                f"{said}, which others have done: its device or its network is stuck{at}",
                False,
            )
    return "collective", f"{activity.words}{at}", False


def _own_operation(found: RankSnapshot, waiting: Waiting) -> object | None:
    pending = found.trace.pending if found.trace is not None else ()
    mine = [one for one in pending if one.group == waiting.group.name]
    return min(mine, key=lambda one: one.sequence, default=None)


def _stuck_child(found: RankSnapshot) -> ChildSnapshot | None:
    """Return the child that is blocked, the surest sign first; all may be waiting for work instead."""
    return min(
        (child for child in found.children if _blockage(child) < _NOT_BLOCKED), key=_blockage, default=None
    )


_NOT_BLOCKED = 4


def _blockage(child: ChildSnapshot) -> int:
    """Return how sure it is that a child is blocked, 0 the surest."""
    state = child.state
    own = [thread.own for thread in child.threads]
    signs = (
        state.stopped,
        state.state == "D",
        state.waits_for.startswith("/") or "wait_for_partner" in state.wchan,
        any(frame is not None and not frame.is_library for frame in own),
    )
    return signs.index(True) if True in signs else _NOT_BLOCKED


def _child_in_words(child: ChildSnapshot) -> str:
    state = child.state
    own = child.threads[0].own if child.threads else None
    at = f" at {own}" if own is not None else ""
    what = state.in_words or (f"waits in the kernel ({state.wchan})" if state.wchan else "runs")
    on = f" on {state.waits_for}" if state.waits_for else ""
    return f"whose worker process {state.pid} {'is ' if state.in_words else ''}{what}{on}{at}"


def _stack_lines(found: RankSnapshot) -> Iterable[str]:
    shown = [thread for thread in found.threads if thread.main or _is_own(thread)]
    for thread in shown[:4]:
        who = (
            "" if thread.main else f"thread {thread.name}: ".replace("  ", " ") if thread.name else "thread: "
        )
        for frame in own_first(thread.frames):
            yield f"{who}{frame}"
    if not found.threads:
        yield from found.state.kernel_stack[:4]
        yield from (f"no stack: {problem}" for problem in found.problems[-1:])


def _is_own(thread: ThreadStack) -> bool:
    return thread.own is not None and not thread.own.is_library


def _groups(ranks: Mapping[int, RankSnapshot], named: set[int]) -> Iterable[str]:
    """Group the others by their stacks, the large groups first."""
    places: dict[ThreadStack | None, list[int]] = {}
    for rank, found in ranks.items():
        if rank not in named:
            places.setdefault(found.main, []).append(rank)
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    for main, members in ordered[:_MOST_GROUPS]:
        if main is None:
            yield f"{ranks_in_words(members)}: no stack"
        else:
            innermost, own = main.frames[0], main.own
            inside = f", in {innermost.function}" if own is not None and own != innermost else ""
            yield f"{ranks_in_words(members)}: {own}{inside}"
    if len(ordered) > _MOST_GROUPS:
        yield f"and {len(ordered) - _MOST_GROUPS} more different stacks"
