"""The meeting process of a node, started by its launcher (``__main__``).

It reads an Invitation and further messages on stdin and writes its own on stdout (``lines``). It ends with
the run, or with its launcher.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from queue import Queue
from threading import Lock, Thread

from platform_launch.rollcall import lines
from platform_launch.rollcall.attend import Attendance
from platform_launch.rollcall.cause import last_words
from platform_launch.rollcall.fingerprint import Fingerprint
from platform_launch.rollcall.lines import Invitation, Message

_TAIL_BYTES = 4096
_LOOK_S = 1.0
# A look that took longer than this (this process was stopped) does not count as silence of the others.
_LONGEST_LOOK_S = 2.0


def main() -> None:
    """Attend one meeting."""
    # The launcher decides when this ends; its own end shows at stdin. Slurm without cgroups signals every
    # process of a step, not only its tasks.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    outlet = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come among the messages
    lock = Lock()

    def emit(message: Message) -> None:
        try:
            with lock:
                os.write(outlet, lines.encode(message))
        except OSError:
            pass  # the launcher is gone, which stdin says too

    invitation = lines.decode(sys.stdin.buffer.readline())
    assert isinstance(invitation, Invitation)
    commands: Queue[Message | None] = Queue()
    Thread(target=_listen, args=(commands,), name="launcher", daemon=True).start()
    fingerprint = Fingerprint.from_json(invitation.fingerprint)
    attendance = Attendance(invitation, fingerprint.with_facts(_torch_facts()), commands, emit)
    log = Path(invitation.log_path)
    Thread(target=_read_along, args=(attendance, log), name="words", daemon=True).start()
    thread = Thread(target=attendance.run, name="attendance", daemon=True)
    thread.start()
    silent_s = _watch(attendance, thread, invitation.node_timeout_s)
    if silent_s:
        reason = f"node 0 has not answered for {silent_s:.0f} s"
        emit(lines.Lost(reason, attendance.last_words_of_host))
    # Threads may be stuck inside torch, which nothing but the end of the process helps.
    os._exit(0)


def _watch(attendance: Attendance, thread: Thread, node_timeout_s: float) -> float:
    """Return 0 when the attendance ended, or for how long the store has been silent when that is too long."""
    answers, silent_s, looked = -1, 0.0, time.monotonic()
    while thread.is_alive():
        thread.join(_LOOK_S)
        now = time.monotonic()
        if attendance.in_touch and attendance.answers == answers:
            silent_s += min(now - looked, _LONGEST_LOOK_S)
        else:
            answers, silent_s = attendance.answers, 0.0
        looked = now
        if silent_s >= node_timeout_s:
            return silent_s
    return 0.0


def _listen(commands: Queue[Message | None]) -> None:
    """Queue what the launcher says, and None when it is gone."""
    for line in sys.stdin.buffer:
        commands.put(lines.decode(line))
    commands.put(None)


def _read_along(attendance: Attendance, log: Path) -> None:
    """Keep the last words of the training at hand: a node that vanishes cannot say them any more.

    In a thread of its own, since a log on a network file system can hang.
    """
    size = -1
    while True:
        try:
            if log.stat().st_size != size:
                with log.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - _TAIL_BYTES))
                    attendance.words = last_words(file.read().decode(errors="replace"))
        except OSError:
            pass  # no log yet, or it was given up: a convenience
        time.sleep(_LOOK_S)


def _torch_facts() -> dict[str, str]:
    """Import torch, which training will import too, and return what only the import tells."""
    import torch

    facts = {
        "torch": str(torch.__version__),
        "torch release": ".".join(str(torch.__version__).split(".")[:2]),
        "CUDA of torch": str(torch.version.cuda),
    }
    if torch.version.cuda:
        facts["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts
