"""Runs a supervisor as the launcher does, in a process of its own, and writes its outcome as JSON.

python driver.py OPTIONS_JSON PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from platform_launch.supervise import Command, Supervisor


def main() -> int:
    options = json.loads(sys.argv[1])
    supervisor = Supervisor(
        Command(tuple(sys.argv[2:]), dict(os.environ), Path(options["cwd"]) if "cwd" in options else None),
        log_path=Path(options["log_path"]) if "log_path" in options else None,
        prefix=options.get("prefix", ""),
        grace_s=options.get("grace_s", 10.0),
    )
    if "stop_after_s" in options:
        threading.Timer(options["stop_after_s"], supervisor.stop, ["node 3 left"]).start()
    outcome = supervisor.run()
    Path(options["outcome_path"]).write_text(
        json.dumps(
            {
                "exit_code": outcome.exit_code,
                "signal": outcome.signal,
                "duration_s": outcome.duration_s,
                "log_path": str(outcome.log_path) if outcome.log_path else None,
                "stopped_by": outcome.stopped_by,
                "killed": outcome.killed,
            }
        )
    )
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
