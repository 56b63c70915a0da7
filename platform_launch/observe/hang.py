"""Snapshots of all nodes → which rank the others wait for, and the paragraph that reports it.

Pure. The collectives show which rank the others wait for; if none is known (JAX, an old torch), the
ranks that stand apart from the large group are the suspects. Evidence of work (``work``)
shows whether a suspect works; stacks and the kernel only name what it is doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from platform_launch.observe.activity import Activity, activity_of
from platform_launch.observe.collectives import (
    DEFAULT_GROUPS,
    WITH_A_ROOT,
    Waiting,
    WaitReport,
    compare,
    in_group,
    ranks_named,
)
from platform_launch.observe.dumps import Collective
from platform_launch.observe.processes import ProcessState
from platform_launch.observe.snapshot import ChildSnapshot, NodeSnapshot, RankSnapshot
from platform_launch.observe.stacks import PythonFrame, ThreadStack, own_first
from platform_launch.observe.words import english, message
from platform_launch.observe.work import Work, evidence
from platform_launch.sentences import Sentence, listed, sentence
from platform_launch.text import Phrase, joined

_MOST_CULPRITS = 8
_MOST_GROUPS = 8


class FindingKind(str, Enum):
    """``hang``: a rank is stuck; ``busy``: the awaited rank works; ``unknown``: no rank stands out."""

    HANG = "hang"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Culprit:
    """A rank that others wait for, or that is stuck by itself.

    ``doing`` is what it does for programs, ``does`` for people; ``busy`` if that is work. ``stack`` has the
    lines of its threads, the user's own frames first.
    """

    rank: int
    node_rank: int | None
    host: str
    pid: int
    gpu: str
    doing: str
    does: Sentence
    busy: bool
    stack: tuple[str, ...] = ()

    def sentence(self) -> Sentence:
        """Return which rank it is and what it does."""
        known = self.node_rank is not None
        who = (
            rank_on(self.rank, self.node_rank or 0, self.host, self.pid, self.gpu)
            if known
            else ranks_named([self.rank])
        )
        return sentence("culprit", who=who, does=self.does)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form, with what it does in English as well."""
        return {**asdict(self), "does": self.does.document(), "words": english(self.does)}


def rank_on(rank: int, node: int, host: str, pid: int, gpu: str) -> Sentence:
    """Return a rank and its location."""
    if gpu:
        return sentence("rank-on-gpu", rank=rank, node=node, host=host, pid=pid, gpu=gpu)
    return sentence("rank-on", rank=rank, node=node, host=host, pid=pid)


@dataclass(frozen=True)
class HangFinding:
    """What is known about a job that makes no progress. ``waiting`` and ``groups`` are lines for people."""

    kind: FindingKind
    culprits: tuple[Culprit, ...]
    waiting: tuple[Sentence, ...]
    groups: tuple[Sentence, ...]
    suspect_ranks: tuple[int, ...]

    def headline(self) -> Phrase:
        """Return the most important line."""
        return joined(map(message, self.headlines()), "; ")

    def headlines(self) -> list[Sentence]:
        """Return the same as one line per named rank."""
        if not self.culprits:
            return list(self.waiting) or [sentence("nobody-apart")]
        more = len(self.culprits) - _MOST_CULPRITS
        named = [culprit.sentence() for culprit in self.culprits[:_MOST_CULPRITS]]
        return [*named, sentence("more-ranks", count=more)] if more > 0 else named

    def details(self) -> list[Sentence | str]:
        """Return the lines below it: sentences, and lines of stacks unchanged."""
        waiting = self.waiting if self.culprits else ()
        stacks = [
            f"rank {culprit.rank}:   {line}"
            for culprit in self.culprits[:_MOST_CULPRITS]
            for line in culprit.stack
        ]
        return [*waiting, *stacks, *self.groups]

    def lines(self) -> list[Phrase]:
        """Return the whole paragraph; lines of stacks are never translated."""
        below = (one if isinstance(one, str) else message(one) for one in self.details())
        return [self.headline(), *(Phrase("  {line}", line=one) for one in below)]

    def line_documents(self) -> Sequence[Sequence[object]]:
        """Return the sentences of each of :meth:`lines`; none for a line of a stack."""
        below = ([] if isinstance(one, str) else [one.document()] for one in self.details())
        return [[one.document() for one in self.headlines()], *below]

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form; ``sentences`` are codes and values of the headlines and of ``waiting``."""
        return {
            "kind": self.kind.value,
            "culprits": [culprit.as_dict() for culprit in self.culprits],
            "waiting": [english(waiting) for waiting in self.waiting],
            "groups": [english(group) for group in self.groups],
            "suspect_ranks": list(self.suspect_ranks),
            "sentences": [
                one.document() for one in (*self.headlines(), *(self.waiting if self.culprits else ()))
            ],
        }


def judge(nodes: Sequence[NodeSnapshot], world_size: int, silent_nodes: Mapping[int, str]) -> HangFinding:
    """Find the ranks that the others wait for. ``silent_nodes`` did not answer: node rank → name."""
    ranks = {rank.rank: rank for node in nodes for rank in node.ranks}
    home = {rank.rank: node for node in nodes for rank in node.ranks}
    alive = {rank: found for rank, found in ranks.items() if not found.state.ended}
    if ranks and not silent_nodes and not alive:
        return HangFinding(FindingKind.BUSY, (), (sentence("all-ended"),), (), ())
    traces = {rank: found.trace for rank, found in alive.items() if found.trace is not None}
    waiters = {rank: found for rank, found in alive.items() if _waits_for_others(found)}
    # A rank without a trace counts as missing. One that has ended is a suspect only if others wait.
    report = (
        compare(traces, world_size, () if waiters else set(ranks) - set(alive)) if traces else WaitReport(())
    )
    suspects = _suspects(ranks, alive, waiters, report)
    idle = [found.work for rank, found in waiters.items() if found.work is not None and rank not in suspects]
    if not suspects:  # no rank stands out; if one works, this is not a hang
        suspects = {rank for rank, found in alive.items() if rank not in waiters and _works(found, idle)}
    culprits = [
        _culprit(rank, ranks.get(rank), home.get(rank), report, idle, silent_nodes)
        for rank in sorted(suspects)
    ]
    working = [culprit for culprit in culprits if culprit.busy]
    kind = FindingKind.BUSY if working else FindingKind.HANG if culprits else FindingKind.UNKNOWN
    named = working or culprits
    return HangFinding(
        kind,
        tuple(named),
        tuple(_waiting_line(waiting, ranks, suspects, report) for waiting in _informative(report, suspects)),
        tuple(_groups(ranks, {culprit.rank for culprit in named})),
        tuple(culprit.rank for culprit in named),
    )


def _suspects(
    ranks: Mapping[int, RankSnapshot],
    alive: Mapping[int, RankSnapshot],
    waiters: Mapping[int, RankSnapshot],
    report: WaitReport,
) -> set[int]:
    """Return the ranks that the others wait for, or that stand out; empty if there are none."""
    suspects = (
        set(report.suspect_ranks) or _stuck_by_themselves(alive) or _unheard(alive) or _outliers(alive, ranks)
    )
    if waiters:
        suspects |= set(ranks) - set(alive)
    surely = {r for r in suspects if r in ranks and (ranks[r].state.ended or ranks[r].state.stopped)}
    return _owners_of_locks(surely or suspects, alive)


def _owners_of_locks(suspects: set[int], alive: Mapping[int, RankSnapshot]) -> set[int]:
    """Name the rank that holds a file lock instead of the ranks that wait for it."""
    rank_of = {
        pid: rank
        for rank, found in alive.items()
        for pid in (found.state.pid, *(child.state.pid for child in found.children))
    }
    owners = {rank: rank_of.get(alive[rank].state.lock_owner, rank) for rank in suspects if rank in alive}
    return {owners.get(rank, rank) for rank in suspects}


def _waits_for_others(found: RankSnapshot) -> bool:
    """Return whether a rank is in a collective, or waits for the other ranks in a store."""
    activity = activity_of(found.main.frames) if found.main else None
    return _operation(found) is not None or (activity is not None and activity.id in _WAITS_FOR_RANKS)


_WAITS_FOR_RANKS = ("collective", "store")


def _operation(found: RankSnapshot) -> Collective | None:
    """Return the operation that the main thread issued and waits for in the library.

    An operation of another thread, or one that is pending while the thread does something else, does not
    count.
    """
    if found.trace is None or found.state.ended:
        return None
    main = found.main
    mine = [
        one
        for one in found.trace.pending
        if not one.thread or main is None or not main.ident or one.thread == main.ident
    ]
    oldest = min(mine, key=lambda one: one.sequence, default=None)
    if main is None or oldest is None:
        return oldest
    activity = activity_of(main.frames)
    if activity is not None:
        return oldest if activity.id in (*_WAITS_FOR_RANKS, "device") else None
    if not oldest.on_gloo:
        return oldest  # a thread that waits for its device may spin, at any line of the script
    in_torch = "/torch/" in main.frames[0].file
    return oldest if in_torch or found.state.call == "futex" else None


def _works(found: RankSnapshot, idle: Sequence[Work]) -> str:
    """Return what shows that a rank works, see ``evidence``; if it was observed too briefly, what seems to
    show it.
    """
    if found.state.stopped:
        return ""
    activity = activity_of(found.main.frames) if found.main else None
    if activity is not None and activity.id == "debugger":
        return "debugger"
    waits_for_device = activity is not None and activity.id == "device" and not found.moving
    if waits_for_device and _device_computes(found):
        return "device"
    in_place = _waits_for_others(found) or waits_for_device
    if found.work is None:
        seems = found.state.state == "R" or (activity is not None and activity.lengthy)
        return "seems" if seems and not in_place else ""
    if found.gil_held and max(found.work.main, found.work.threads) < _BUSY_SHARE:
        return ""  # threads that wait for the GIL wake up 200 times a second
    return evidence(found.work, idle, waits_in_place=in_place)


def _device_computes(found: RankSnapshot) -> bool:
    """Return whether a rank's GPU computes, instead of waiting for other ranks."""
    alone = found.trace is not None and all(one.on_gloo for one in found.trace.pending)
    return alone and found.gpu_busy is not None and found.gpu_busy >= _BUSY_GPU_PERCENT


def _informative(report: WaitReport, suspects: set[int]) -> list[Waiting]:
    """Return the operations that wait for the suspects, or all if none does."""
    naming = [w for w in report.waiting if {*w.behind, *w.stopped, *w.differ} & suspects]
    others = [waiting for waiting in naming or report.waiting if set(waiting.ranks) - suspects]
    return (others if suspects else list(report.waiting))[:_MOST_GROUPS]


def _waiting_line(
    waiting: Waiting, ranks: Mapping[int, RankSnapshot], suspects: set[int], report: WaitReport
) -> Sentence:
    named = report.circular or {*waiting.differ} >= {*waiting.ranks}
    came = [rank for rank in waiting.ranks if named or rank not in suspects] or list(waiting.ranks)
    places = {str(own) for rank in came if rank in ranks and (main := ranks[rank].main) and (own := main.own)}
    line = sentence(
        "waits-in" if len(came) == 1 else "wait-in",
        who=ranks_named(came),
        operation=_named(waiting.operation, waiting, always=report.circular),
    )
    if len(places) == 1:
        line = sentence("from-frame", what=line, frame=min(places))
    lacking = sorted({*waiting.behind, *waiting.stopped, *waiting.differ} & suspects - set(came))
    return sentence("for-ranks", what=line, who=ranks_named(lacking)) if lacking else line


def _named(operation: Collective, waiting: Waiting, *, always: bool = False) -> str | Sentence:
    """Return an operation, with its group if that is not the one of all ranks."""
    if not always and waiting.group.name in DEFAULT_GROUPS:
        return str(operation)
    return in_group(operation, waiting.group)


def _stuck_by_themselves(alive: Mapping[int, RankSnapshot]) -> set[int]:
    """Return the ranks that are stopped or blocked in the kernel, otherwise the few that compute outside a
    collective.
    """
    stuck = {rank for rank, found in alive.items() if found.state.stopped or found.state.state == "D"}
    computing = {rank for rank, found in alive.items() if not _waits_for_others(found) and _computes(found)}
    return stuck or (computing if len(computing) * 2 <= len(alive) else set())


def _computes(found: RankSnapshot) -> bool:
    return found.work.main >= _BUSY_SHARE if found.work is not None else found.state.state == "R"


# Separates computing from occasional wake-ups.
_BUSY_SHARE = 0.05
# A device that only holds a process's context is 0 % busy.
_BUSY_GPU_PERCENT = 5.0


def _unheard(alive: Mapping[int, RankSnapshot]) -> set[int]:
    """Return the ranks at the ends of connections whose packets vanish."""
    return {rank for rank, found in alive.items() if found.unheard}


def _outliers(alive: Mapping[int, RankSnapshot], ranks: Mapping[int, RankSnapshot]) -> set[int]:
    """Return the ranks outside the largest group with equal stacks; none if no group is the largest."""
    places: dict[object, set[int]] = {}
    for rank, found in alive.items():
        main = found.main
        places.setdefault(main.functions if main is not None else None, set()).add(rank)
    sizes = sorted((len(members) for members in places.values()), reverse=True)
    if len(sizes) < 2 or sizes[0] == sizes[1]:
        # Two equal groups: the ranks that do not wait for others stand out.
        outside = {rank for rank, found in alive.items() if not _waits_for_others(found)}
        return outside if 0 < len(outside) < len(ranks) else set()
    return {rank for members in places.values() if len(members) < sizes[0] for rank in members}


def _culprit(
    rank: int,
    found: RankSnapshot | None,
    node: NodeSnapshot | None,
    report: WaitReport,
    idle: Sequence[Work],
    silent_nodes: Mapping[int, str],
) -> Culprit:
    if found is None or node is None:
        return Culprit(rank, None, "", 0, "", "absent", _absent(silent_nodes), busy=False)
    doing, does, busy = _doing(found, report, idle)
    gpu = node.gpus.get(found.local_rank or 0, "")
    return Culprit(
        rank, node.node_rank, node.host, found.state.pid, gpu, doing, does, busy, tuple(_stack_lines(found))
    )


def _absent(silent_nodes: Mapping[int, str]) -> Sentence:
    if not silent_nodes:
        return sentence("not-known")
    names = [f"{number} ({name})" for number, name in sorted(silent_nodes.items())]
    return sentence("not-known-on-one" if len(names) == 1 else "not-known-on-several", nodes=listed(names))


def _at(what: Sentence, frame: PythonFrame | None) -> Sentence:
    return sentence("at", what=what, frame=str(frame)) if frame is not None else what


def _doing(found: RankSnapshot, report: WaitReport, idle: Sequence[Work]) -> tuple[str, Sentence, bool]:
    """Return what a rank does: for programs, for people, and whether it is work."""
    state, main = found.state, found.main
    own = main.own if main is not None else None
    if state.ended:
        return "gone", sentence("gone"), False
    if state.stopped:
        signalled = state.state == "T"
        halted = (
            sentence("halted", pid=state.pid) if signalled else sentence("is", state=sentence("state-traced"))
        )
        return "stopped", _at(halted, own), False
    activity = activity_of(main.frames) if main is not None else None
    if shown := _works(found, idle):
        return _working(found, shown, activity, own)
    if found.unheard and (activity is None or activity.id in _WAITS_FOR_RANKS):
        does = activity.sentence if activity else sentence("sleeps")
        return "network", _unheard_end(_at(does, own), found), False
    if state.state == "D" and (found.gil_held or not _waits_for_others(found)):
        does = _waits(state)
        if activity is not None and activity.lengthy:
            does = sentence("while", what=does, doing=activity.sentence)
        return "kernel", _at(does, own), False
    if found.gil_held:
        does = _at(sentence("holds-gil"), own)
        return "gil", sentence("and", what=does, more=_waits(state)) if state.waits_for else does, False
    if _waits_for_others(found):
        return _in_a_collective(found, report, activity, own)
    return _waiting_for(found, activity, own)


def _working(
    found: RankSnapshot, shown: str, activity: Activity | None, own: PythonFrame | None
) -> tuple[str, Sentence, bool]:
    """Return what a rank is working on, and the evidence. Frames only provide the name."""
    work = found.work or Work(0.0)
    known = activity is not None and activity.id not in _WAITS_FOR_RANKS
    base = activity.sentence if activity is not None and known else sentence("runs")
    doing = activity.id if activity is not None and known else "busy"
    if shown == "debugger":
        return doing, _at(base, own), True
    if shown == "child":
        name = "worker" if doing == "data" else "child"
        one = sentence(name, pid=work.child, name=work.child_name)
        return (
            doing,
            sentence("child-works", what=_at(base, own), child=one, percent=_percent(work.children)),
            True,
        )
    if shown == "threads":
        return doing, sentence("thread-works", what=_at(base, own), percent=_percent(work.threads)), True
    if shown == "device":
        percent = f"{found.gpu_busy or 0:.0f}%"
        return doing, _at(sentence("device-works", what=base, percent=percent), own), True
    if shown == "bytes":
        return doing, sentence("bytes-move", what=_at(base, own), rate=f"{work.bytes_per_s / 1e6:.2g}"), True
    if doing != "busy" and activity is not None and activity.lengthy:
        return doing, _at(base, own), True
    # Python threads switch when one calls into C, so samples of a loop over library calls look the same.
    in_library = found.main is not None and found.main.frames[0].is_library
    loops = found.moving is False and not in_library
    return ("loop" if loops else "busy"), _at(sentence("loops" if loops else "computes"), own), True


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def _waiting_for(
    found: RankSnapshot, activity: Activity | None, own: PythonFrame | None
) -> tuple[str, Sentence, bool]:
    """Return what a rank waits for that neither works nor is in a collective."""
    state = found.state
    if activity is not None and activity.id in ("data", "child"):
        child = _stuck_child(found)
        if child is None and activity.id == "child":
            child = next((one for one in reversed(found.children) if not one.state.ended), None)
        if child is not None:
            name = "worker" if activity.id == "data" else "child"
            one = sentence(name, pid=child.state.pid, name=child.state.name)
            waits = _at(activity.sentence, own)
            doing = "data-worker" if activity.id == "data" else "child"
            return doing, sentence("child-stuck", what=waits, child=one, does=_child_does(child)), False
    if activity is not None:
        does = activity.sentence
        if state.waits_for.count(":") and not state.waits_for.startswith(("/", "pipe:", "socket:", "anon")):
            does = sentence("to-peer", what=does, peer=state.waits_for)
        elif activity.id == "lock" or state.call == "lock":
            does = _waits(state) if state.call == "lock" else does
        does = _at(does, own)
        if activity.lengthy and found.work is not None:
            does = sentence("no-sign", what=does, seconds=round(found.work.observed_s))
        return activity.id, does, False
    does = _at(_waits(state), own)
    others = [thread.own for thread in found.threads if not thread.main and _is_own(thread)]
    if others and state.call == "futex":
        does = sentence("other-thread", what=does, frame=str(others[0]))
    return "asleep", does, False


def _waits(state: ProcessState) -> Sentence:
    """Return what the main thread of a process waits for, according to the kernel."""
    if state.call == "lock" and state.waits_for:
        code = "waits-lock-of" if state.lock_owner else "waits-lock"
        values = {"pid": state.lock_owner} if state.lock_owner else {}
        return sentence(code, file=state.waits_for, **values)
    if state.waits_for.startswith("pipe:"):
        return sentence("pipe-full" if state.call == "write" else "pipe-empty")
    if state.waits_for and state.call in ("read", "write", "connect"):
        file = state.waits_for.startswith("/")
        return sentence(
            f"waits-{state.call}" if file or state.call == "connect" else f"waits-peer-{state.call}",
            file=state.waits_for,
        )
    known = sentence(_CALLS[state.call]) if state.call in _CALLS else sentence("sleeps")
    if state.state == "D":
        blocked = sentence("is", state=sentence("state-blocked"))
        return sentence("on", what=blocked, file=state.waits_for) if state.waits_for else blocked
    return known


_CALLS = {
    "sleep": "naps",
    "futex": "waits-lock-or-thread",
    "child": "waits-child",
    "poll": "waits-poll",
    "open": "waits-open",
    "accept": "waits-accept",
    "lock": "waits-some-lock",
    "read": "waits-some-read",
    "write": "waits-some-write",
}


def _unheard_end(what: Sentence, found: RankSnapshot) -> Sentence:
    first, more = found.unheard[0], len(found.unheard) - 1
    ends: dict[str, str | int] = {"remote": first.remote, "local": first.local, "times": first.attempts + 1}
    if more:
        return sentence("unheard-several", what=what, more=more, **ends)
    return sentence("unheard", what=what, **ends)


def _in_a_collective(
    found: RankSnapshot, report: WaitReport, activity: Activity | None, own_frame: PythonFrame | None
) -> tuple[str, Sentence, bool]:
    """Return what is wrong with a rank that waits in an operation itself."""
    at = next((one for one in report.waiting if found.rank in {*one.differ}), None)
    mine = _own_operation(found, at) or _operation(found) if at is not None else None
    if at is not None and mine is not None:
        what = _at(_is_in(found, mine), own_frame)
        return "mismatch", sentence("mismatch", what=what, others=_other_operations(mine, at)), False
    if report.circular and found.rank in report.suspect_ranks:
        at = next(one for one in report.waiting if found.rank in one.ranks)
        mine = _own_operation(found, at) or at.operation
        what = sentence("is-in", operation=in_group(mine, at.group))
        return "circular", sentence("circular", what=_at(what, own_frame)), False
    for waiting in report.waiting:
        own = _own_operation(found, waiting)
        if found.rank in waiting.stopped or (found.rank in waiting.behind and own is not None):
            still = _in(found, activity, own)
            doing, code = "transport", "others-done"
            if own is not None and own.on_gloo:
                rooted = own.kind in WITH_A_ROOT
                doing, code = ("root", "others-left-root") if rooted else ("order", "others-left")
            return doing, sentence(code, what=_at(still, own_frame)), False
    return "collective", _at(_in(found, activity, _operation(found)), own_frame), False


def _in(found: RankSnapshot, activity: Activity | None, operation: Collective | None) -> Sentence:
    """Return the operation that a rank is in, according to the recorder, or to the torch function that it
    called.
    """
    if operation is not None:
        return _is_in(found, operation)
    if activity is None or found.main is None:
        return sentence("sleeps")
    called = next((frame.function for frame in found.main.frames if activity.covers(frame)), "")
    if activity.doing == "waits-torch" and called.isidentifier():
        return sentence("waits-torch-in", function=called)
    return activity.sentence


def _is_in(found: RankSnapshot, operation: Collective) -> Sentence:
    group = found.trace.groups.get(operation.group) if found.trace is not None else None
    if group is None or group.name in DEFAULT_GROUPS:
        return sentence("is-in", operation=str(operation))
    return sentence("is-in", operation=in_group(operation, group))


def _other_operations(mine: Collective, at: Waiting) -> list[str | Sentence]:
    every = {
        one.kind: one
        for one in (at.operation, *at.others)
        if (one.kind, one.shapes) != (mine.kind, mine.shapes)
    }
    return [
        str(one) if one.kind != mine.kind else sentence("with-shapes", operation=str(one), shapes=one.shapes)
        for one in every.values()
    ]


def _own_operation(found: RankSnapshot, waiting: Waiting) -> Collective | None:
    pending = found.trace.pending if found.trace is not None else ()
    mine = [one for one in pending if one.group == waiting.group.name]
    return min(mine, key=lambda one: one.sequence, default=None)


def _stuck_child(found: RankSnapshot) -> ChildSnapshot | None:
    """Return the child that is most certainly blocked; all may be waiting for work instead."""
    return min(
        (child for child in found.children if _blockage(child) < _NOT_BLOCKED), key=_blockage, default=None
    )


_NOT_BLOCKED = 5


def _blockage(child: ChildSnapshot) -> int:
    """Return how certain it is that a child is blocked; 0 is the most certain."""
    state = child.state
    own = [thread.own for thread in child.threads]
    signs = (
        state.stopped,
        state.state == "D",
        state.call == "write" or state.call == "lock",
        state.waits_for.startswith("/") or state.call == "open" or "wait_for_partner" in state.wchan,
        any(frame is not None and not frame.is_library for frame in own),
    )
    return signs.index(True) if True in signs else _NOT_BLOCKED


def _child_does(child: ChildSnapshot) -> Sentence:
    state = child.state
    does = sentence("is", state=state.sentence) if state.sentence and state.state != "D" else _waits(state)
    if state.state == "R":
        does = sentence("runs")
    return _at(does, child.threads[0].own if child.threads else None)


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


def _groups(ranks: Mapping[int, RankSnapshot], named: set[int]) -> Iterable[Sentence]:
    """Group the others by their stacks, the large groups first."""
    places: dict[ThreadStack | None, list[int]] = {}
    for rank, found in ranks.items():
        if rank not in named:
            places.setdefault(found.main, []).append(rank)
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    for main, members in ordered[:_MOST_GROUPS]:
        what: str | Sentence = sentence("no-stack")
        if main is not None:
            innermost, own = main.frames[0], main.own
            what = str(own)
            if own is not None and own != innermost:
                what = sentence("in", what=what, operation=innermost.function)
        yield sentence("place", who=ranks_named(members), what=what)
    if len(ordered) > _MOST_GROUPS:
        yield sentence("more-stacks", count=len(ordered) - _MOST_GROUPS)
