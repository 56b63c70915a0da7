"""Processes that run collectives of torch or JAX, check the numbers, and measure latency and bandwidth.

    python collective.py gloo

Reads one JSON array per line, the orders for this node's processes in one round: ``{"process": 0,
"processes": 2, "local": 0, "limit_s": 60, "coordinator": "10.0.0.1:4711"}``. Prints an array of as many
objects: ``problem`` (empty if all went well), ``wrong``, ``latency_us``, ``bandwidth_gbps``.

Each is a separate process, because a hanging communicator cannot be cancelled. They are forks of this one,
which imports torch once and starts nothing. JAX has threads from its import on, so there each process imports
it again. Run as a script, never imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any


def main() -> None:
    """Answer until standard input ends; what libraries print goes to stderr."""
    backend = sys.argv[1]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    out.write("\n")  # ends a line that was begun before
    if backend != "jax":
        with suppress(Exception):  # the code that needs it reports why it is missing
            import_module("torch.distributed")
    for line in sys.stdin:
        working = [CollectiveProcess(backend, order, out.fileno()) for order in json.loads(line)]
        print(json.dumps([worker.answer() for worker in working]), file=out, flush=True)


class CollectiveProcess:
    """One process of a collective."""

    def __init__(self, backend: str, order: dict[str, Any], outlet: int) -> None:
        self._answer, self._errors = os.memfd_create("answer"), os.memfd_create("errors")
        self._pid = os.fork()
        if self._pid == 0:
            os.close(outlet)  # it closes when the forking process is gone
            self._work(backend, order)

    def _work(self, backend: str, order: dict[str, Any]) -> None:
        try:
            signal.alarm(int(order["limit_s"]) + 10)  # the process that started this may be gone
            os.dup2(self._errors, 1)
            os.dup2(self._errors, 2)
            os.environ["LOCAL_RANK"] = str(order["local"])
            # Beside this file, whose folder Python looks in first.
            library = import_module("collective_jax" if backend == "jax" else "collective_torch")
            answer = {"problem": "", **library.collective({**order, "backend": backend})}
        except BaseException as error:
            answer = {"problem": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
        os.write(self._answer, json.dumps(answer).encode())
        os._exit(0)  # communicators wait for peers that may be gone

    def answer(self) -> object:
        """Wait for the end of the process and return its answer."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        output, errors = (_contents(descriptor) for descriptor in (self._answer, self._errors))
        if output:
            return json.loads(output)
        code = code if code >= 0 else 128 - code
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return {"problem": f"the worker ended with exit code {code}: {last[0][:300]}"}


def _contents(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


main()
