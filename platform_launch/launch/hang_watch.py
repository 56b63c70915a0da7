"""The hang monitor of one attempt: findings are reported, recorded, and acted on if requested."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from itertools import count
from pathlib import Path

from platform_launch import files
from platform_launch.console.languages import translate
from platform_launch.errors import InputError
from platform_launch.events import Event, event, line
from platform_launch.launch.cost import RunClock
from platform_launch.launch.exit_code import closing_signals, failed_local_ranks
from platform_launch.launch.pace_watch import PaceWatch
from platform_launch.launch.peers import LinkPeers, ObserveMessage
from platform_launch.launch.profiling import Profiling
from platform_launch.launch.training_command import REPORT, STOP, HangOptions
from platform_launch.observe.collectives import ranks_named
from platform_launch.observe.control import ControlSocket
from platform_launch.observe.hang import FindingKind, judge
from platform_launch.observe.memory import MemoryHeld, memory_lines
from platform_launch.observe.monitor import (
    ANSWER_LIMIT_S,
    HangMonitor,
    HangReport,
    NodeReply,
    Replies,
    work_window_s,
)
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.overview import finding_lines, overview, stack_lines
from platform_launch.observe.snapshot import NodeSnapshot
from platform_launch.observe.words import english, message
from platform_launch.observe.workers import remove_torchruns_folders
from platform_launch.rendezvous.run.texts import TextCommand, TextNews
from platform_launch.text import Phrase, iso_utc


class HangWatch:
    """For one attempt. ``report(event)`` reports, ``act(report)`` stops the job if that was requested.

    ``send`` sends to the other nodes, None if there are none; ``also`` returns what else ``inspect`` shows.
    ``clock`` records how long the job hangs, and how long it waits for slow ranks.
    """

    def __init__(
        self,
        options: HangOptions,
        report: Callable[[Event], None],
        act: Callable[[HangReport], None],
        send: Callable[[TextCommand], None] | None,
        also: Callable[[], Mapping[str, object]],
        clock: RunClock,
        slowed_devices: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._slowed_devices = slowed_devices
        self._clock = clock
        self._also = also
        self._options = options
        self._report = report
        self._act = act
        self._probe: NodeProbe | None = None
        self._last_early_exits: Event | None = None
        self._last_details: tuple[int, FindingKind, list[Phrase]] | None = None
        self._monitor: HangMonitor | None = None
        self._control: ControlSocket | None = None
        self._peers: LinkPeers | None = None
        self._pace: PaceWatch | None = None
        self._profiling: Profiling | None = None
        if send is not None:
            self._peers = LinkPeers(send, self._reply, self._on_notice, self._on_message)

    def start(self) -> None:
        """Start. The folder exists already (:func:`open_folder`)."""
        options = self._options
        try:
            self._probe = probe = NodeProbe(
                options.folder,
                options.node_rank,
                options.host,
                options.gpus,
                memory=options.memory or MemoryHeld,
                work_window_s=work_window_s(options.after_s or float("inf")),
                slowed_devices=self._slowed_devices,
            )
            self._monitor = HangMonitor(
                probe,
                options.log,
                world_size=options.world_size,
                hang_after_s=options.after_s or float("inf"),
                leads=options.node_rank == 0,
                ask_others=self._peers.query
                if self._peers is not None
                else lambda _still_s, _limit_s: Replies(),
                reported=self._on_report,
                resumed=self._on_resumed,
                failed=lambda problem: self._report(event("not-observed", problem=problem)),
            )
            self._profiling = Profiling(probe, options, self._peers)
            self._control = ControlSocket(options.folder, self._answer)
        except (OSError, InputError) as error:
            self._report(event("not-observed", problem=str(error)))
            return
        self._pace = PaceWatch(probe, options, self._peers, self._report, self._clock.slowed)
        self._control.start()
        self._monitor.start()
        self._pace.start()

    def stop_watching(self) -> None:
        """Stop looking for hangs: the processes were asked to stop, or have exited."""
        if self._monitor is not None:
            self._monitor.stop()
        if self._pace is not None:
            self._pace.stop()

    def stop(self) -> None:
        """Stop, without waiting for a question to other nodes."""
        self.stop_watching()
        if self._control is not None:
            self._control.stop()
        remove_torchruns_folders(self._options.folder)

    def report_early_exits(self, tail: bytes, *, failed_here: bool) -> str:
        """Report once which ranks of this node exited cleanly before others failed; return it, or "".

        Such a rank ran out of data, or skipped something that the others do, so they fail and it does not.
        ``tail`` is the end of the job's output; for ``failed_here`` see NodeProbe.left.
        """
        if self._probe is None:
            return ""
        ended_at = closing_signals(tail, datetime.now())
        left = self._probe.left(failed_local_ranks(tail), ended_at, failed_here=failed_here)
        if not left:
            return ""
        exit_event = event("ranks-left", who=message(ranks_named(left)), ranks="+".join(map(str, left)))
        if exit_event != self._last_early_exits:
            self._last_early_exits = exit_event
            self._report(exit_event)
        return line(exit_event)

    def receive(self, message: TextNews) -> None:
        """Handle a message of the rendezvous that may be for the monitors."""
        if self._peers is not None:
            self._peers.receive(message)

    def still_s(self, within_s: float) -> float | None:
        """Return how long this node has made no progress, see HangMonitor; None if unknown."""
        return self._monitor.still_s(within_s) if self._monitor is not None else None

    def _reply(self, still_s: float) -> NodeReply:
        return self._monitor.reply(still_s) if self._monitor is not None else NodeReply(0.0)

    def _on_message(self, message: ObserveMessage) -> ObserveMessage | None:
        if self._pace is None or self._profiling is None:
            return None
        return self._pace.receive(message) or self._profiling.receive(message)

    def _on_report(self, report: HangReport) -> None:
        """Report a finding of this node's monitor on all nodes."""
        if self._peers is not None:
            self._peers.report(report)
        is_new = self._report_finding(report)
        path = self._record(report)
        if path is not None and is_new:
            self._report(event("hang-recorded", path=str(path)))
        if self._options.on_hang != REPORT and report.finding.kind is not FindingKind.BUSY:
            self._report(event("hang-ends-training", on_hang=self._options.on_hang))
            self.stop_watching()
            self._act(report)

    def _on_notice(self, report: HangReport) -> None:
        if self._monitor is not None:
            self._monitor.record_finding(report)
        self._report_finding(report)

    def _on_resumed(self, still_s: float) -> None:
        self._clock.hanging(None)
        self._report(event("progress-again", still_s=still_s))

    def _report_finding(self, report: HangReport) -> bool:
        """Report a finding, without its details if they were the same in the last report of this hang, or if
        it stops several nodes, whose verdict contains them. Return whether the details are new.
        """
        finding = report.finding
        self._clock.hanging(None if finding.kind is FindingKind.BUSY else report.still_s)
        name = "slow-but-working" if finding.kind is FindingKind.BUSY else "no-progress"
        headline, *details = finding.lines()
        self._report(
            event(
                name,
                still_s=report.still_s,
                headline=headline,
                headlines=[one.document() for one in finding.headlines()],
                kind=finding.kind.value,
                ranks="+".join(map(str, finding.suspect_ranks)),
                finding=finding.as_dict(),
            )
        )
        reported = (report.hang, finding.kind, details)
        if reported == self._last_details:
            return False
        self._last_details = reported
        stops = self._options.on_hang == STOP and finding.kind is not FindingKind.BUSY
        if not stops or self._peers is None:
            for text in details:
                self._report(event(f"{name}-detail", text=text))
        return True

    def _record(self, report: HangReport) -> Path | None:
        """Write what all ranks were doing to a file beside the log, never replacing an earlier one."""
        names = (self._options.log.with_suffix(f".hang{n}.json") for n in count(1))
        path = next(path for path in names if not os.path.exists(path))  # noqa: PTH110 - never raises
        document = {
            "hang": {
                "time": iso_utc(),
                "still_s": round(report.still_s, 1),
                "lines": report.finding.lines(),
                "line_sentences": report.finding.line_documents(),
                **report.finding.as_dict(),
            },
            "nodes": [asdict(node) for node in report.nodes],
        }
        with suppress(OSError, ValueError):
            files.write_whole(path, json.dumps(document, indent=1) + "\n", mode=files.SHARED)
            return path
        return None

    def _answer(self, request: Mapping[str, object]) -> dict[str, object]:
        """Answer a request of a command on this machine."""
        if request.get("do") != "profile" or self._profiling is None:
            return self._inspect(str(request.get("language", "en")))
        ranks = request.get("ranks")
        chosen = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
        seconds = request.get("seconds")
        found = self._profiling.run(seconds if isinstance(seconds, int | float) else 5.0, chosen)
        return {"log": str(self._options.log), "traces": found}

    def _inspect(self, language: str) -> dict[str, object]:
        """Answer ``platform-launch inspect``: the stacks in a language, the other lines as templates too."""
        reply = self._reply(0.0)
        given, silent = {self._options.node_rank: reply}, dict[int, str]()
        if self._peers is not None:
            replies = self._peers.query(0.0, ANSWER_LIMIT_S)
            given, silent = {**replies.given, **given}, dict(replies.silent)
        nodes: list[NodeSnapshot] = [one.snapshot for _, one in sorted(given.items()) if one.snapshot]
        still_s = min(one.still_s for one in given.values())
        finding = judge(nodes, self._options.world_size, silent)
        found, places = finding_lines(finding, still_s), overview(nodes, silent)
        slow = self._pace.lines() if self._pace is not None else []
        also = dict(self._also())
        also["memory_lines"] = memory_lines(
            (Phrase("node {rank} ({place})", rank=node.node_rank, place=node.host), node.memory)
            for node in nodes
        )
        return {
            "still_s": round(still_s, 1),
            "log": str(self._options.log),
            "finding_lines": [english(line) for line in found],
            "finding_line_sentences": [line.document() for line in found],
            "lines": [english(line) for line in places],
            "line_sentences": [line.document() for line in places],
            "slow_lines": [english(line) for line in slow],
            "slow_line_sentences": [line.document() for line in slow],
            "stack_lines": stack_lines(nodes, lambda line: translate(message(line), language)),
            "finding": finding.as_dict(),
            "silent_nodes": {str(rank): name for rank, name in silent.items()},
            "nodes": [asdict(node) for node in nodes],
            **with_phrases(also),
        }


def with_phrases(also: Mapping[str, object]) -> dict[str, object]:
    """Add the phrases that its lines are made of, as ``…_phrases``, for other languages."""
    found = dict(also)
    for name in ("memory_lines", "cost_line", "health_lines"):
        lines = also.get(name) or []
        every = lines if isinstance(lines, list) else [lines]
        documents = [one.document() if isinstance(one, Phrase) else str(one) for one in every]
        found[f"{name.removesuffix('s')}_phrases"] = documents
    return found
