"""Says whether JAX can be imported and which devices it sees; prints one JSON object.

Run as a script, never imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Print the object; what libraries print goes to stderr."""
    signal.alarm(int(sys.argv[1]))  # whoever started this may be gone
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, b"\n" + json.dumps(facts()).encode())  # a line of its own, whatever was printed before
    os._exit(0)


def facts() -> dict[str, object]:
    """Return version, back end, number and kinds of this node's devices."""
    try:
        import jax
    except Exception as error:
        return {"import_problem": f"{type(error).__name__}: {error}"}
    try:
        found = jax.local_devices()
        total = float(jax.numpy.ones(2).sum())
    except Exception as error:
        return {"version": jax.__version__, "device_problem": str(error).partition("\n")[0]}
    problem = "" if total == 2.0 else f"a device adds 1 and 1 to {total:g}"
    return {
        "version": jax.__version__,
        "backend": found[0].platform,
        "devices": len(found),
        "kinds": [f"{device.id}: {device.device_kind}" for device in found],
        "device_problem": problem,
    }


main()
