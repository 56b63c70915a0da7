"""One training and its keeper, which outlives the agent: started by path, with the run's folder.

It ends the training when the agent has written down that it shall (``stop.json``), and when no agent has
lived for long: nothing runs for ever that nobody can stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

if not __package__:  # started by path, for the working directory may hold anything: see __main__.py
    sys.path[0] = __file__.rsplit("/", 4)[0]

from platform_launch.hardware import cgroup, running
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.launch import Launch
from platform_launch.procguard.agent.lock import is_free
from platform_launch.supervise import Command, Outcome, Supervisor

GONE = "the agent of this node is gone"
_LOOK_S = 0.1
_LOOK_FOR_AGENT_S = 1.0
# What the verdict may cost: the machine may have other work by then.
_VERDICT_S = 30
_VERDICT_BYTES = 64 * 1024 * 1024


class _Watcher:
    """A thread that looks for the wish to end the training, and for the agent."""

    def __init__(self, folder: Path, launch: Launch, supervisor: Supervisor) -> None:
        self.asked: str | None = None
        self._folder = folder
        self._launch = launch
        self._supervisor = supervisor
        self._grace_s = float("inf")
        self._missed_since: float | None = None
        self._look_for_agent_at = 0.0

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self._look_for_stop()
            now = time.monotonic()
            if now >= self._look_for_agent_at:
                self._look_for_agent_at = now + _LOOK_FOR_AGENT_S
                self._look_for_agent(now)
            time.sleep(_LOOK_S)

    def _look_for_stop(self) -> None:
        try:
            record = records.read(self._folder / records.STOP)
        except OSError:  # a disk that does not answer is no wish
            return
        if record is None:
            return
        grace_s = float(record.get("grace_s", self._launch.grace_s))
        if grace_s < self._grace_s:
            self._grace_s = grace_s
            self.asked = self.asked or str(record.get("reason", "stopped"))
            self._supervisor.stop(self.asked, grace_s)

    def _look_for_agent(self, now: float) -> None:
        if not is_free(Path(self._launch.lock)):
            self._missed_since = None
            return
        self._missed_since = self._missed_since or now
        if now - self._missed_since > self._launch.orphan_after_s:
            self._supervisor.stop(GONE)


def keep(folder: Path) -> None:
    """Run the training of a run's folder to its end, unless somebody else does or has given it up."""
    launch = Launch.read(folder)
    exited, ended = records.Reserved(folder / records.EXITED), records.Reserved(folder / records.ENDED)
    me = running.look(os.getpid())
    record = {"pid": os.getpid(), "started": me.started if me else 0}
    if not records.claim(folder / records.KEEPER, record):
        return
    oom_kills = cgroup.OomKills()
    supervisor = Supervisor(
        Command(launch.command, launch.environment, Path(launch.directory)),
        log_path=folder / records.LOG,
        grace_s=launch.grace_s,
        on_start=lambda pid: _note(folder / records.TRAINING, {"pid": pid}),
        on_ending=lambda reason: _note(folder / records.ENDING, {"reason": reason}),
        on_exit=lambda code: exited.write({**_now(), "exit_code": code}),
    )
    watcher = _Watcher(folder, launch, supervisor)
    threading.Thread(target=watcher.run, daemon=True).start()
    outcome = supervisor.run()
    asked = watcher.asked is not None and outcome.stopped_by == watcher.asked
    ended.write(
        {
            **_now(),
            "exit_code": outcome.exit_code,
            "asked": asked,
            "reason": _reason(outcome),
        }
    )
    if outcome.exit_code and outcome.stopped_by is None:
        _explain(folder, oom_kills.so_far())


def _reason(outcome: Outcome) -> str:
    if outcome.stopped_by is not None:
        stuck = f"; {len(outcome.killed)} process(es) had to be killed" if outcome.killed else ""
        return f"{outcome.stopped_by}{stuck}"
    return f"killed by {outcome.signal.name}" if outcome.signal else ""


def _explain(folder: Path, oom_kills: int | None) -> None:
    """Write down what ``why`` makes of the end of the log; an alarm ends this process where it takes long."""
    signal.alarm(_VERDICT_S)
    from platform_launch.why import LogSource, explain

    log = folder / records.LOG
    with log.open("rb") as stream:
        if log.stat().st_size > _VERDICT_BYTES:
            stream.seek(-_VERDICT_BYTES, os.SEEK_END)
            stream.readline()
        verdict = explain([LogSource(records.LOG, stream)], oom_kills)
    if verdict.kind not in ("nothing", "finished"):
        text = "\n".join(verdict.lines())
        part = folder / f".{records.VERDICT}"
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(folder / records.VERDICT)


def _now() -> dict[str, object]:
    return {"boot": running.boot_id(), "at": records.clock_s()}


def _note(path: Path, record: dict[str, object]) -> None:
    """Write down what is good to know; a full disk must not end the training."""
    with suppress(OSError):
        records.write(path, record)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
