"""Snapshots of all nodes → who keeps whom waiting, and the paragraph that tells a person so.

Pure. The collectives tell whom the others wait for; stacks and the kernel tell what those are doing. Where no
collective is known (JAX, an old torch), the ranks that stand apart from the large group are the suspects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from platform_launch.observe.activity import Activity, activity_of
from platform_launch.observe.collectives import Waiting, WaitReport, compare, ranks_named
from platform_launch.observe.dumps import Collective
from platform_launch.observe.snapshot import ChildSnapshot, NodeSnapshot, RankSnapshot
from platform_launch.observe.stacks import PythonFrame, ThreadStack, own_first
from platform_launch.observe.words import english
from platform_launch.sentences import Sentence, listed, sentence

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

    ``doing`` says what it does for programs and ``does`` for people; ``busy`` if that is work.
    ``stack`` holds the lines of its threads, the user's own frames first.
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
        """Return who it is and what it does."""
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
    """Return the name of a rank with where it is."""
    if gpu:
        return sentence("rank-on-gpu", rank=rank, node=node, host=host, pid=pid, gpu=gpu)
    return sentence("rank-on", rank=rank, node=node, host=host, pid=pid)


@dataclass(frozen=True)
class HangFinding:
    """What is known of a job in which nothing moves. ``waiting`` and ``groups`` are lines for people."""

    kind: FindingKind
    culprits: tuple[Culprit, ...]
    waiting: tuple[Sentence, ...]
    groups: tuple[Sentence, ...]
    suspect_ranks: tuple[int, ...]

    def headline(self) -> str:
        """Return the one line that matters, in English."""
        return "; ".join(map(english, self.headlines()))

    def headlines(self) -> list[Sentence]:
        """Return it as a line for each rank that is named."""
        if not self.culprits:
            return list(self.waiting) or [sentence("nobody-apart")]
        more = len(self.culprits) - _MOST_CULPRITS
        named = [culprit.sentence() for culprit in self.culprits[:_MOST_CULPRITS]]
        return [*named, sentence("more-ranks", count=more)] if more > 0 else named

    def details(self) -> list[Sentence | str]:
        """Return what stands below it: sentences, and lines of stacks as they are."""
        waiting = self.waiting if self.culprits else ()
        stacks = [
            f"rank {culprit.rank}:   {line}"
            for culprit in self.culprits[:_MOST_CULPRITS]
            for line in culprit.stack
        ]
        return [*waiting, *stacks, *self.groups]

    def lines(self) -> list[str]:
        """Return the whole paragraph in English."""
        below = (one if isinstance(one, str) else english(one) for one in self.details())
        return [self.headline(), *(f"  {text}" for text in below)]

    def line_documents(self) -> Sequence[Sequence[object]]:
        """Return for each of :meth:`lines` the sentences that it was made of: none for a line of a stack."""
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
    """Say who keeps whom waiting. ``silent_nodes`` did not answer: rank of the node → its name."""
    ranks = {rank.rank: rank for node in nodes for rank in node.ranks}
    home = {rank.rank: node for node in nodes for rank in node.ranks}
    if ranks and not silent_nodes and all(found.state.gone for found in ranks.values()):
        return HangFinding(FindingKind.BUSY, (), (sentence("all-ended"),), (), ())
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


def _waiting_line(waiting: Waiting, ranks: Mapping[int, RankSnapshot], suspects: set[int]) -> Sentence:
    came = [rank for rank in waiting.ranks if rank not in suspects] or list(waiting.ranks)
    places = {str(own) for rank in came if rank in ranks and (main := ranks[rank].main) and (own := main.own)}
    operation: str | Sentence = str(waiting.operation)
    if waiting.group.name not in ("", "0"):
        operation = sentence("of-group", operation=operation, group=waiting.group.name)
    line = sentence("waits-in" if len(came) == 1 else "wait-in", who=ranks_named(came), operation=operation)
    if len(places) == 1:
        line = sentence("from-frame", what=line, frame=min(places))
    lacking = sorted({*waiting.behind, *waiting.stopped, *waiting.differ} & suspects)
    return sentence("for-ranks", what=line, who=ranks_named(lacking)) if lacking else line


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
        return Culprit(rank, None, "", 0, "", "absent", _absent(silent_nodes), busy=False)
    doing, does, busy = _doing(found, report)
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


def _doing(found: RankSnapshot, report: WaitReport) -> tuple[str, Sentence, bool]:
    """Return what a rank does: a word, words, and whether it works. The surest signs come first."""
    state, main = found.state, found.main
    activity = activity_of(main.frames) if main is not None else None
    own = main.own if main is not None else None
    if state.gone:
        return "gone", sentence("gone"), False
    if state.stopped:
        signalled = state.state == "T"
        halted = (
            sentence("halted", pid=state.pid) if signalled else sentence("is", state=sentence("state-traced"))
        )
        return "stopped", _at(halted, own), False
    if activity is not None and activity.id == "data" and (child := _stuck_child(found)):
        waits = _at(sentence("waits-loader"), own)
        return (
            "data-worker",
            sentence("loader-stuck", what=waits, pid=child.state.pid, does=_child_does(child)),
            False,
        )
    blocked = state.sentence if state.state == "D" else None
    if blocked and not found.moving:
        does = sentence("is", state=blocked)
        if state.waits_for:
            does = sentence("on", what=does, file=state.waits_for)
        if activity is not None and activity.lengthy:
            does = sentence("while", what=does, doing=activity.sentence)
        return "kernel", _at(does, own), False
    if found.gil_held:
        does = _at(sentence("holds-gil"), own)
        return "gil", sentence("and", what=does, more=blocked) if blocked else does, False
    if activity is not None and activity.lengthy:
        return activity.id, _at(activity.sentence, own), True
    # Threads of Python take turns where one calls into C, so that samples of a loop over library calls agree.
    in_library = main is not None and main.frames[0].is_library and activity is None
    if found.computes and (found.moving or in_library):
        return "busy", _at(sentence("computes"), own), True
    if found.computes:
        return "loop", _at(sentence("loops"), own), False
    if found.unheard and (activity is None or activity.id in ("collective", "store")):
        return (
            "network",
            _unheard_end(_at(activity.sentence if activity else sentence("sleeps"), own), found),
            False,
        )
    if activity is not None and activity.id == "collective":
        return _in_a_collective(found, report, activity, own)
    if activity is not None:
        return activity.id, _at(activity.sentence, own), False
    if "nanosleep" in state.wchan:
        return "asleep", _at(sentence("naps"), own), False
    asleep = _at(sentence("sleeps-in", function=state.wchan) if state.wchan else sentence("sleeps"), own)
    others = [thread.own for thread in found.threads if not thread.main and _is_own(thread)]
    if others and "futex" in state.wchan:
        asleep = sentence("other-thread", what=asleep, frame=str(others[0]))
    return "asleep", asleep, False


def _unheard_end(what: Sentence, found: RankSnapshot) -> Sentence:
    first, more = found.unheard[0], len(found.unheard) - 1
    ends: dict[str, str | int] = {"remote": first.remote, "local": first.local, "times": first.attempts + 1}
    if more:
        return sentence("unheard-several", what=what, more=more, **ends)
    return sentence("unheard", what=what, **ends)


def _in_a_collective(
    found: RankSnapshot, report: WaitReport, activity: Activity, own_frame: PythonFrame | None
) -> tuple[str, Sentence, bool]:
    """Say what is wrong with a rank that waits in an operation itself."""
    for waiting in report.waiting:
        if found.rank in waiting.differ:
            mine = next((w.operation for w in report.waiting if found.rank in w.ranks), waiting.operation)
            differs = sentence("mismatch", operation=str(_own_operation(found, waiting) or mine))
            return "mismatch", _at(differs, own_frame), False
        own = _own_operation(found, waiting)
        if found.rank in waiting.stopped or (found.rank in waiting.behind and own is not None):
            still = sentence("still-in", operation=str(own)) if own is not None else activity.sentence
            return "transport", _at(sentence("others-done", what=still), own_frame), False
    return "collective", _at(activity.sentence, own_frame), False


def _own_operation(found: RankSnapshot, waiting: Waiting) -> Collective | None:
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


def _child_does(child: ChildSnapshot) -> Sentence:
    state = child.state
    if state.sentence:
        does = sentence("is", state=state.sentence)
    else:
        does = sentence("kernel-sleeps", function=state.wchan) if state.wchan else sentence("runs")
    if state.waits_for:
        does = sentence("on", what=does, file=state.waits_for)
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
