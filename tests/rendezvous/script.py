"""A job that does what its arguments say: ``sleep:2 print:hello fail:1``.

sleep:S        wait
late:RANK:S    wait on this rank only
print:TEXT     print it
step:N         print a line that reports this step
fail:RANK      raise on this rank; the other ranks wait until they are stopped
once:RANK      as fail, in the first attempt only
obey:FILE      on SIGTERM write this file and exit with 0
eat:RANK       take all memory there is, on this rank
"""

import os
import signal
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]


def obey(path: str) -> None:
    def leave(*_: object) -> None:
        Path(f"{path}.{RANK}").write_text("saved")
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


for argument in sys.argv[1:]:
    what, _, rest = argument.partition(":")
    if what == "sleep":
        time.sleep(float(rest))
    elif what == "late" and rest.partition(":")[0] == RANK:
        time.sleep(float(rest.partition(":")[2]))
    elif what == "eat" and rest == RANK:
        eaten = []
        while True:
            eaten.append(b"x" * 2**25)
    elif what == "print":
        print(rest, flush=True)
    elif what == "step":
        print(f"Step {rest}/100 | Loss: 0.1", flush=True)
    elif what == "obey":
        obey(rest)
    elif what == "fail" or (what == "once" and os.environ["PLATFORM_LAUNCH_RESTART_COUNT"] == "0"):
        if rest == RANK:
            raise ValueError("the data is wrong")
        time.sleep(600)
