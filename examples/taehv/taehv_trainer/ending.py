"""How a run ended, for a launcher that only sees that accelerate's launcher returned 1."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

VARIABLE = "PLATFORM_LAUNCH_EXIT_FILE"


def write_exit_file(exit_code: int, reason: str, file: str | None = None) -> None:
    """Write exit code and reason to the file that the launcher named, if it did; the first process wins.

    When one process fails, torch's agent stops the others: their reasons would be consequences.
    """
    file = os.environ.get(VARIABLE) if file is None else file
    if not file:
        return
    final = Path(file)
    unfinished = final.with_name(f".{final.name}.{os.getpid()}")
    with suppress(OSError):  # the process is about to exit: there is nothing to do about it
        unfinished.write_text(json.dumps({"exit_code": exit_code, "reason": reason}) + "\n", encoding="utf-8")
        try:
            os.link(unfinished, final)
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
