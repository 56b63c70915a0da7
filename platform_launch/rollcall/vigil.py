"""Node 0 during the run: watches the beats, collects how each training ended, and settles what it means."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace

from platform_launch.errors import NodesAbsentError
from platform_launch.rollcall import store as place
from platform_launch.rollcall.cause import Report, first_cause
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.pulse import Pulse
from platform_launch.rollcall.ranks import in_words
from platform_launch.rollcall.restarts import NOT_ASKED_FOR
from platform_launch.rollcall.store import End, Outcome, State, Store

# After a failure every node stops within three seconds; what has not reported by then is not waited for.
_REPORT_S = 6.0
# One that does not report and did not even beat for this long has vanished.
_DEAD_S = 3.0


class Vigil:
    """Watches over a run that has started. Call :meth:`step` about once a second; it never waits."""

    def __init__(
        self,
        store: Store,
        tickets: Mapping[int, int],
        nodes: Mapping[int, Fingerprint],
        *,
        clock_offsets_s: Mapping[int, float],
        node_timeout_s: float,
        grace_s: float,
    ) -> None:
        self._store = store
        self._tickets = dict(tickets)
        self._nodes = dict(nodes)
        self._clock_offsets_s = clock_offsets_s
        self._node_timeout_s = node_timeout_s
        self._grace_s = grace_s
        self._pulse: Pulse[int] = Pulse(longest_look_s=2.0)
        self._came = store.add(place.ARRIVALS, 0)
        self._reports: dict[int, Report] = {}
        self._why_not_again = ""
        self._looked = time.monotonic()
        self._ended: tuple[float, End] | None = None
        self.outcome: Outcome | None = None

    @property
    def all_left(self) -> bool:
        """Whether every node that is not given up has read the outcome."""
        return place.has_all(self._store, [f"left/{ticket}" for ticket in self._tickets.values()])

    def step(self) -> None:
        """Look once."""
        now = time.monotonic()
        self._listen(now)
        if self.outcome is not None:
            return
        self._newcomers()
        self._collect()
        if self._ended is None and self._store.check([place.END]):
            self._ended = now, place.read(End, self._store.get(place.END))
        if self._ended is not None:
            self._settle_failure(now, *self._ended)
        elif self._reports.keys() >= self._tickets.keys():
            self._settle(Outcome(0))

    def close(self) -> None:
        """End the meeting while others still train: node 0 has finished, and waited long enough."""
        if self.outcome is None:
            self._settle(Outcome(0, closed=True))

    def _listen(self, now: float) -> None:
        ranks = list(self._tickets)
        beats = self._store.multi_get([f"beat/{self._tickets[rank]}" for rank in ranks]) if ranks else []
        self._pulse.observe(dict(zip(ranks, beats, strict=True)), now - self._looked)
        self._looked = now
        silent = self._pulse.silent_for(self._node_timeout_s)
        gone = [rank for rank in silent if rank not in self._reports]
        if gone and self._ended is None:
            self._stop_for(gone)
        for rank in silent:
            del self._tickets[rank]

    def _stop_for(self, gone: list[int]) -> None:
        self._store.compare_set(place.END, "", place.to_json(self._vanished(gone, self._node_timeout_s)))

    def _vanished(self, gone: list[int], silent_s: float) -> End:
        where = ", ".join(self._nodes[rank].place for rank in gone[:4])
        reason = f"{in_words(gone)} vanished ({where}): nothing heard for {silent_s:.0f} s"
        if len(gone) == len(self._nodes) - 1 > 1:
            reason += ", so that node 0 itself is probably the one that is cut off"
        key = f"words/{self._tickets[min(gone)]}"
        words = tuple(json.loads(self._store.get(key)))
        return End("vanished", min(gone), reason, NodesAbsentError.exit_code, words)

    def _newcomers(self) -> None:
        """A node that comes during the run was started anew, unless only its meeting process was."""
        came = self._store.add(place.ARRIVALS, 0)
        while self._came < came and self._store.check([f"arrival/{self._came}"]):
            guest = Fingerprint.from_json(self._store.get(f"arrival/{self._came}"))
            known = self._nodes.get(guest.node_rank)
            if known is not None and known.identity == guest.identity:
                self._tickets[guest.node_rank] = self._came
            elif known is not None and (known.job_id or guest.job_id) == (guest.job_id or known.job_id):
                reason = f"node {guest.node_rank} was started anew, on {guest.place}: its training was lost"
                end = End("vanished", guest.node_rank, reason, NodesAbsentError.exit_code)
                self._store.compare_set(place.END, "", place.to_json(end))
            self._came += 1

    def _collect(self) -> None:
        if self._store.add(place.REPORTS, 0) == len(self._reports):
            return
        for rank in self._nodes.keys() - self._reports.keys():
            key = f"report/{rank}"
            if self._store.check([key]):
                values = json.loads(self._store.get(key))
                report = Report(**{**values["report"], "words": tuple(values["report"]["words"])})
                ended_at_s = report.ended_at_s - self._clock_offsets_s.get(rank, 0.0)
                self._reports[rank] = replace(report, ended_at_s=ended_at_s)
                if rank == 0:
                    self._why_not_again = values["why_not_again"]

    def _settle_failure(self, now: float, ended_at: float, end: End) -> None:
        waited_s = now - ended_at
        limit_s = _REPORT_S + (self._grace_s if end.in_good_order else 0.0)
        missing = self._tickets.keys() - self._reports.keys()
        if missing and waited_s < limit_s:
            return
        cause = first_cause(list(self._reports.values()))
        dead = [rank for rank in missing if self._pulse.silent_s(rank) >= _DEAD_S]
        if dead and (cause is None or cause.blames_others) and not end.in_good_order:
            # Its partners were quicker to lose their connections than we are to miss its beat.
            end = self._vanished(dead, max(self._pulse.silent_s(rank) for rank in dead))
        if end.in_good_order:
            self._settle(Outcome(0, (end.reason,)))
            return
        restart = not end.in_good_order and self._why_not_again == "" and 0 in self._reports
        lines, exit_code, first_failed = explain(end, list(self._reports.values()))
        if self._why_not_again not in ("", NOT_ASKED_FOR):
            lines = (*lines, f"not started again: {self._why_not_again}")
        self._settle(Outcome(exit_code, lines, restart, first_failed=first_failed))

    def _settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        # For a node that comes only now: it may join the next run, if there is one.
        ended = State(
            "refused", exit_code=NodesAbsentError.exit_code, reasons=("the run of this job has ended",)
        )
        self._store.set(place.STATE, place.to_json(State("over") if outcome.restart else ended))
        self._store.set(place.SETTLED, place.to_json(outcome))


def explain(end: End, reports: list[Report]) -> tuple[tuple[str, ...], int, int]:
    """Return the lines that say why the run ended, the exit code for all nodes, and which failed first."""
    cause = first_cause(reports)
    if cause is None or end.kind == "vanished":
        head, words, exit_code, rank = end.reason, end.words, end.exit_code, end.node_rank
    else:
        head = f"node {cause.node_rank}, {cause.place}: the training ended with exit code {cause.exit_code}"
        words, exit_code, rank = cause.words, cause.exit_code, cause.node_rank
    return (head, *(f"  | {line}" for line in words)), exit_code, rank
