"""One process of a collective of torch or JAX: checks its numbers, measures latency and bandwidth.

    python collective.py '{"backend": "jax", "process": 0, "processes": 2, "limit_s": 60, "coordinator": …}'
    python collective.py '{"backend": "gloo", "process": 0, …, "host": …, "port": …, "prefix": …}'

Prints one JSON object: ``problem`` (empty when all went well), ``wrong``, ``latency_us``, ``bandwidth_gbps``.
Run as a script, never imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module


def main() -> None:
    """Print the object; what libraries print goes to stderr."""
    order = json.loads(sys.argv[1])
    signal.alarm(int(order["limit_s"]) + 10)  # whoever started this may be gone
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        # Beside this file, whose folder Python looks in first.
        library = import_module("collective_jax" if order["backend"] == "jax" else "collective_torch")
        answer = {"problem": "", **library.collective(order)}
    except Exception as error:
        answer = {"problem": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
    os.write(out, json.dumps(answer).encode())
    os._exit(0)  # communicators wait for peers that may be gone


main()
