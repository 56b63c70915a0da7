"""Queries DeepSpeed's op builders in a source tree, as setup.py would an hour later.

    python ops.py SOURCE OP...

Prints one JSON object: the backend, the ops that it has, and for each OP named whether it would be compiled
(``variable``, ``problem``: empty or DeepSpeed's reason). Run as a script, never imported.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Print the object; what DeepSpeed prints goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    source, *wanted = sys.argv[1:]
    os.chdir(source)  # builders name their files relative to it
    sys.path.insert(0, source)
    from op_builder.all_ops import ALL_OPS, accelerator_name  # type: ignore[import-not-found]

    answer = {
        "accelerator": accelerator_name,
        # A placeholder stands for an op that the backend lacks.
        "known": sorted(name for name in ALL_OPS if not name.endswith("not_implemented")),
        "asked": {
            name: {"variable": ALL_OPS[name].BUILD_VAR, "problem": problem(ALL_OPS[name])}
            for name in wanted
            if name in ALL_OPS
        },
    }
    os.write(out, b"\n" + json.dumps(answer).encode())  # a line of its own, whatever was printed before
    os._exit(0)  # shutting torch down costs a third of its import


def problem(builder: object) -> str:
    """Return why an op would be left out or would stop the build; empty if it can be compiled."""
    warnings: list[str] = []
    builder.warning = warnings.append  # type: ignore[attr-defined]
    try:
        if not builder.is_compatible(verbose=True):  # type: ignore[attr-defined]
            return "; ".join(warnings) or "DeepSpeed calls it incompatible with this machine"
        builder.builder()  # type: ignore[attr-defined]
    except Exception as error:  # builders raise anything: mismatch, missing CUDA, bad architecture
        return f"{type(error).__name__}: {error}"
    return ""


main()
