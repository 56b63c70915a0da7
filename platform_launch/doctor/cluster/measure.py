"""One node's share of a group's collective: worker processes with a time limit."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from platform_launch.doctor.cluster.document import DoctorTask, Share
from platform_launch.doctor.cluster.pairing import Group
from platform_launch.environment import Environment
from platform_launch.hardware import ports
from platform_launch.helper import answer_line
from platform_launch.hostlist import bracketed
from platform_launch.text import Phrase

_PROBE = Path(__file__).parents[1] / "probes" / "collective.py"
# In addition to the limit of the collective itself, for starting its processes.
_MARGIN_S = 5.0


class CollectiveWorkers:
    """This node's processes of collectives; none is left when the context exits."""

    def __init__(self, task: DoctorTask) -> None:
        self._task = task
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CollectiveWorkers:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._end()

    def start(self) -> None:
        """Start the process that forks them, early, so that it has imported torch by the first round."""
        self._process = subprocess.Popen(
            (sys.executable, str(_PROBE), self._task.backend),
            env=Environment.of_this_process().inherited(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._stdin, self._stdout = _pipe(self._process.stdin), _pipe(self._process.stdout)

    def run_round(self, number: int, group: Group, address: str) -> Share:
        """Run the workers of round ``number`` and return their result.

        ``address`` is where the first of them serves the store of torch, or the coordinator of JAX.
        """
        task = self._task
        me = group.index(task.node_rank)
        order: dict[str, object] = {
            "limit_s": task.collective_limit_s,
            "processes": len(group) * task.workers,
            "coordinator": address,
        }
        shares = self._shares(
            [{**order, "process": me * task.workers + local, "local": local} for local in range(task.workers)]
        )
        share = next((share for share in shares if share.problem), shares[0])
        return replace(share, round=number)

    def _shares(self, orders: Sequence[Mapping[str, object]]) -> list[Share]:
        """Return each process's result; after a timeout or a crash, new processes run the next round."""
        try:
            self._stdin.write(json.dumps(orders).encode() + b"\n")
            line = self._line(time.monotonic() + self._task.collective_limit_s + _MARGIN_S)
            shares = [_share(share) for share in json.loads(line)]
            if len(shares) == len(orders):
                return shares
            problem = Phrase(
                "only {count} of {all} processes of the collective reported a result",
                count=len(shares),
                all=len(orders),
            )
        except TimeoutError:
            limit_s = self._task.collective_limit_s
            problem = Phrase("the collective did not end within {limit:g} s", limit=limit_s)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            problem = Phrase("the processes of the collective ended")
        self._end()
        self.start()
        return [Share(-1, problem)]

    def _line(self, deadline: float) -> str:
        """Return the next answer, '' if no more can come."""
        output = b""
        while not (output.endswith(b"\n") and (line := answer_line(output.decode(errors="replace")))):
            if not select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            more = self._stdout.read(2**16)
            if not more:
                return ""
            output += more
        return line

    def _end(self) -> None:
        """Kill all of them, also those that hang or lost the process that forked them."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdin.close()
        self._stdout.close()


def free_address(address: str) -> str:
    """Return an address of this node with a port that is free now."""
    return f"{bracketed(address)}:{ports.free()}"


def _share(found: Mapping[str, Any]) -> Share:
    return Share(
        -1,
        str(found["problem"]),
        bool(found.get("wrong", False)),
        float(found.get("latency_us", 0.0)),
        float(found.get("bandwidth_gbps", 0.0)),
    )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
