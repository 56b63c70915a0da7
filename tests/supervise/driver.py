"""Runs a supervisor as the launcher does, in a child process, and writes its outcome as JSON.

python driver.py OPTIONS_JSON PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from platform_launch.events import event
from platform_launch.sentences import sentence
from platform_launch.supervise import Command, Supervisor, watch


class StillClock:
    """A time in which no time passes."""

    @staticmethod
    def monotonic() -> float:
        """Return the same time as ever."""
        return 1000.0


def tell_at_exit(supervisor: Supervisor, options: dict[str, Any]) -> None:
    """Say an event that only the command's end gives rise to."""
    if "at_exit" in options:
        supervisor.report(event("progress-again", still_s=options["at_exit"]))


def main() -> int:
    options = json.loads(sys.argv[1])
    if "clock_stands_still" in options:
        vars(watch)["time"] = StillClock
    supervisor = Supervisor(
        Command(tuple(sys.argv[2:]), dict(os.environ), Path(options["cwd"]) if "cwd" in options else None),
        log_path=Path(options["log_path"]) if "log_path" in options else None,
        prefix=options.get("prefix", ""),
        grace_s=options.get("grace_s", 10.0),
        temporary=[Path(folder) for folder in options.get("temporary", ())],
        on_start=lambda pid: stop_once_ended(supervisor, pid) if "stop_once_ended" in options else None,
        on_exit=lambda _code: tell_at_exit(supervisor, options),
    )
    if "stop_once_logged" in options:
        threading.Thread(target=stop_once, args=(supervisor, options), daemon=True).start()
    outcome = supervisor.run()
    Path(options["outcome_path"]).write_text(
        json.dumps(
            {
                "exit_code": outcome.exit_code,
                "signal": outcome.signal,
                "duration_s": outcome.duration_s,
                "log_path": str(outcome.log_path) if outcome.log_path else None,
                "stopped_by": outcome.stopped_by,
                "stop_sentence": outcome.stop_sentence.code if outcome.stop_sentence else None,
                "killed": outcome.killed,
            }
        )
    )
    return outcome.exit_code


def stop_once_ended(supervisor: Supervisor, pid: int) -> None:
    """Ask for the end after the command's, before the supervisor has looked: it was stopped meanwhile."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    supervisor.stop("node 3 left")


def stop_once(supervisor: Supervisor, options: dict[str, str]) -> None:
    """Ask for the end from another thread, once the training has said something."""
    log = Path(options["log_path"])
    while not (log.exists() and options["stop_once_logged"] in log.read_text()):
        time.sleep(0.02)
    supervisor.stop("node 3 left", sentence=sentence("node-left", node=3))


if __name__ == "__main__":
    sys.exit(main())
