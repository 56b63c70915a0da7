"""A supervisor in a real process, with real children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.waiting import LIMIT_S
from tests.supervise.lab import DRIVER, ROOT, Supervise, Supervised


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Start a command under a supervisor: ``supervise(*argv, prefix=…, grace_s=…, before=[…], stdout=…)``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, before: tuple[str, ...] = (), **options: Any) -> Supervised:
        popen = {name: options.pop(name) for name in ("stdin", "stdout", "stderr") if name in options}
        outcome_path = tmp_path / f"outcome_{len(started)}.json"
        log_path = Path(options.setdefault("log_path", str(tmp_path / "logs" / "train.log")))
        options["outcome_path"] = str(outcome_path)
        process = subprocess.Popen(
            [*before, sys.executable, str(DRIVER), json.dumps(options), *argv],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **popen},
        )
        started.append(process)
        return Supervised(process, outcome_path, log_path)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()
