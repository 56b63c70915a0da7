"""The supervisor of one run, a helper process that outlives the agent and gets the run's folder.

It stops the run when the agent has recorded a ``stop`` in agent.json, and when no agent has lived for long:
nothing runs forever that nobody can stop.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from platform_launch.hardware import cgroup
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.output import OutputRhythm
from platform_launch.procguard.agent.records import RunLaunch, is_free
from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.wire import STALLED_S
from platform_launch.sentences import Sentence, quoted, sentence
from platform_launch.supervise import Command, Outcome, Supervisor

GONE = sentence("agent-gone")
_CHECK_S = 0.1
_CHECK_AGENT_S = 1.0
# Time limit for the verdict: the machine may have other work by then.
_VERDICT_S = 30
_PROCESS = "[Rank {RANK}] World Size: {WORLD_SIZE}, Local Rank: {LOCAL_RANK}, Master Addr: {MASTER_ADDR}\n"
_LAUNCHER = "[Node {NODE_RANK}] Nodes: {NNODES}, Master Addr: {MASTER_ADDR}\n"
_VERDICT_BYTES = 64 * 1024 * 1024


class _Watcher:
    """A thread that stops the run on request, or when there is no agent."""

    def __init__(self, folder: Path, launch: RunLaunch, supervisor: Supervisor) -> None:
        self.order: Sentence | None = None
        self._folder = folder
        self._launch = launch
        self._supervisor = supervisor
        self._grace_s = float("inf")
        self._missed_since: float | None = None
        self._rhythm = OutputRhythm()
        self._check_agent_at = 0.0

    def run(self) -> None:
        """Check until the process ends."""
        while True:
            self._check_stop()
            now = time.monotonic()
            if now >= self._check_agent_at:
                self._check_agent_at = now + _CHECK_AGENT_S
                self._check_agent(now)
            time.sleep(_CHECK_S)

    def _check_stop(self) -> None:
        try:
            stop = (records.read(self._folder / records.AGENT) or {}).get("stop")
        except OSError:  # a disk that does not answer is not a request to stop
            return
        if stop is None:
            return
        grace_s = float(stop["grace_s"])
        if grace_s < self._grace_s:
            self._grace_s = grace_s
            self.order = self.order or records.reason_of(stop) or sentence("stopped")
            self._supervisor.stop(english(self.order), grace_s, sentence=self.order)

    def _check_agent(self, now: float) -> None:
        """Stop a run without an agent: after orphan_after_s, or sooner if its output has stalled as well."""
        stalled = self._rhythm.stalled(self._folder / records.LOG)
        if not is_free(Path(self._launch.lock)):
            self._missed_since = None
            return
        self._missed_since = self._missed_since or now
        missed_s, limit_s = now - self._missed_since, self._launch.orphan_after_s
        if missed_s > (min(limit_s, STALLED_S) if stalled else limit_s):
            self._supervisor.stop(english(GONE), sentence=GONE)


def run_training(folder: Path) -> None:
    """Run what a run's folder describes, unless it has another supervisor or was given up."""
    launch = RunLaunch.read(folder)
    record = records.SupervisorRecord(folder)
    if not record.claim():
        return
    RunLaunch.forget(folder)
    _write_first_line(folder / records.LOG, launch.environment)
    oom_kills = cgroup.OomKills()
    supervisor = Supervisor(
        Command(launch.command, launch.environment, Path(launch.directory)),
        log_path=folder / records.LOG,
        grace_s=launch.grace_s,
        on_start=lambda pid: record.write_if_possible(training=pid),
        on_ending=lambda name: record.write_if_possible(
            ending=(supervisor.stop_sentence or quoted(name)).document()
        ),
        on_exit=lambda code: record.write(exited={**records.now(), "exit_code": code}),
    )
    watcher = _Watcher(folder, launch, supervisor)
    threading.Thread(target=watcher.run, daemon=True).start()
    outcome = supervisor.run()
    reason = _reason(outcome)
    record.write(
        ended={
            **records.now(),
            "exit_code": outcome.exit_code,
            "stop_requested": outcome.stop_sentence is not None and outcome.stop_sentence is watcher.order,
            "reason": reason and reason.document(),
        }
    )
    if outcome.exit_code and outcome.stopped_by is None:
        record.write_if_possible(**_explained(folder / records.LOG, oom_kills.so_far()))


def _write_first_line(log: Path, place: Mapping[str, str]) -> None:
    """Write a first line that names the rank; a full disk must not prevent the start."""
    form = _PROCESS if "RANK" in place else _LAUNCHER
    with suppress(OSError, KeyError):  # an incomplete rank is not printed
        log.write_text(form.format_map(place), encoding="utf-8")


def _reason(outcome: Outcome) -> Sentence | None:
    if outcome.stopped_by is not None:
        # A signal to the supervisor itself has no sentence.
        reason, count = outcome.stop_sentence or quoted(outcome.stopped_by), len(outcome.killed)
        return sentence("stopped-with-kills", reason=reason, count=count) if count else reason
    return sentence("killed", signal=outcome.signal) if outcome.signal else None


def _explained(log: Path, oom_kills: int | None) -> dict[str, object]:
    """Return the result of ``why`` for the end of the log; an alarm ends this process if it takes too
    long.
    """
    signal.alarm(_VERDICT_S)
    from platform_launch.why.explaining import explain
    from platform_launch.why.sources import LogSource

    with log.open("rb") as stream:
        skipped = _skip(stream, log.stat().st_size - _VERDICT_BYTES)
        verdict = explain([LogSource(records.LOG, stream)], oom_kills)
    if verdict.kind in ("nothing", "finished"):
        return {}
    text = "\n".join(verdict.lines("en")).encode(errors="replace").decode()
    found: dict[str, object] = {"verdict": text, "why": asdict(replace(verdict, logs=(), source=""))}
    line = next((one.line for one in (*verdict.evidence, verdict.first_error) if one is not None), None)
    return found if line is None else {**found, "line": skipped + line}


def _skip(stream: BinaryIO, many: int) -> int:
    """Skip so many bytes, up to the start of a line; return the number of skipped lines."""
    lines = 0
    while many > 0 and (block := stream.read(min(many, 1024 * 1024))):
        many -= len(block)
        lines += block.count(b"\n")
    return lines + (1 if stream.tell() and stream.readline() else 0)


def main(arguments: Sequence[str]) -> int:
    """Supervise the run whose folder is given."""
    run_training(Path(arguments[0]))
    return 0
