"""The pace of one attempt: slow ranks are reported on all nodes, and shown by ``inspect``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from platform_launch.events import Event, event
from platform_launch.launch.peers import (
    ArrivalsAnswer,
    ArrivalsQuestion,
    LinkPeers,
    ObserveMessage,
    PaceNotice,
    SamplesAnswer,
    SamplesQuestion,
    SlowNotice,
)
from platform_launch.launch.training_command import HangOptions
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.pace_probe import arrivals_here, samples_here
from platform_launch.observe.slow_ranks import (
    PERIOD_S,
    NodeArrivals,
    PaceChange,
    RankSamples,
    SlowFinding,
    SlowRanks,
)
from platform_launch.observe.words import message
from platform_launch.sentences import Sentence, sentence

# How long the other nodes may take: to query their recorders, and to sample ranks a few times.
_ARRIVALS_LIMIT_S, _SAMPLES_LIMIT_S = 8.0, 20.0
_SHORTEST_PERIOD_S = 30.0


class PaceWatch:
    """For one attempt. ``report(event)`` reports; without ``peers`` this node is alone.

    ``slowed(s)`` receives how long the others have waited for slow ranks so far.
    """

    def __init__(
        self,
        probe: NodeProbe,
        options: HangOptions,
        peers: LinkPeers | None,
        report: Callable[[Event], None],
        slowed: Callable[[float], None],
    ) -> None:
        self._probe, self._options, self._peers, self._report = probe, options, peers, report
        # Nothing is reported within --hang-after of the start, because compilations and caches make the first
        # steps uneven.
        after_s = options.after_s or PERIOD_S * 5
        self._ranks = SlowRanks(
            options.node_rank,
            self._arrivals,
            self._ask_others,
            self._sample,
            self._on_finding,
            self._on_change,
            slowed,
            quiet_s=after_s,
            period_s=min(PERIOD_S, max(_SHORTEST_PERIOD_S, after_s / 5)),
        )

    def start(self) -> None:
        """Start, on node 0 only; the other nodes answer its questions."""
        if self._options.node_rank == 0 and self._options.world_size > 1:
            self._ranks.start()

    def stop(self) -> None:
        """End."""
        self._ranks.stop()

    def lines(self) -> list[Sentence]:
        """Return the slow ranks for ``inspect``."""
        if self._options.world_size < 2:
            return []
        found, unknown = self._ranks.find()
        if unknown == "no-device-times":
            return [sentence("pace-unknown", why=sentence(unknown))]
        return [sentence("slow-now", what=finding.sentence()) for finding in found]

    def receive(self, message: ObserveMessage) -> ObserveMessage | None:
        """Handle a message of another node; return the answer."""
        if isinstance(message, ArrivalsQuestion):
            return ArrivalsAnswer(self._arrivals(message.since_s))
        if isinstance(message, SamplesQuestion):
            return SamplesAnswer(tuple(samples_here(self._probe, message.ranks)))
        if isinstance(message, SlowNotice):
            self._report_finding(message.finding, begins=message.begins)
        elif isinstance(message, PaceNotice):
            self._report_change(message.change)
        return None

    def _arrivals(self, since_s: float) -> NodeArrivals:
        with self._probe.asking():
            clock = self._peers.clock if self._peers is not None else None
            return arrivals_here(self._probe, self._options.host, since_s, clock)

    def _ask_others(self, since_s: float) -> Mapping[int, NodeArrivals]:
        if self._peers is None:
            return {}
        answers, _ = self._peers.exchange(ArrivalsQuestion(since_s), ArrivalsAnswer, _ARRIVALS_LIMIT_S)
        return {node: answer.arrivals for node, answer in answers.items()}

    def _sample(self, ranks: Sequence[int]) -> Sequence[RankSamples]:
        with ThreadPoolExecutor(1) as pool:
            here = pool.submit(samples_here, self._probe, ranks)
            there: list[RankSamples] = []
            if self._peers is not None:
                question = SamplesQuestion(tuple(ranks))
                answers, _ = self._peers.exchange(question, SamplesAnswer, _SAMPLES_LIMIT_S)
                there = [sample for answer in answers.values() for sample in answer.samples]
            return [*here.result(), *there]

    def _on_finding(self, finding: SlowFinding, begins: bool) -> None:
        if self._peers is not None:
            self._peers.notify(SlowNotice(finding, begins))
        self._report_finding(finding, begins=begins)

    def _on_change(self, change: PaceChange) -> None:
        if self._peers is not None:
            self._peers.notify(PaceNotice(change))
        self._report_change(change)

    def _report_finding(self, finding: SlowFinding, *, begins: bool) -> None:
        headline = finding.sentence()
        self._report(
            event(
                "slow-rank" if begins else "slow-rank-over",
                headline=message(headline),
                headlines=[headline.document()],
                ranks="+".join(map(str, finding.ranks)),
                finding=finding.as_dict(),
            )
        )

    def _report_change(self, change: PaceChange) -> None:
        step, usual = f"{change.step_s:.3g}", f"{change.usual_s:.3g}"
        headline = sentence("longer-steps" if change.slower else "usual-steps", step=step, usual=usual)
        self._report(
            event(
                "slower-than-before" if change.slower else "as-fast-as-before",
                headline=message(headline),
                headlines=[headline.document()],
                step_s=change.step_s,
                usual_s=change.usual_s,
            )
        )
