"""One node's share of a collective: what the processes that take part answer, and what is none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.doctor.cluster.document import DoctorTask
from platform_launch.doctor.cluster.measure import CollectiveWorkers


def test_what_an_image_lets_every_python_print_is_no_answer_of_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('[]', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    task = DoctorTask(0, 2, "gn0", "127.0.0.1", 0, None, "127.0.0.1", 29500, (29501,), "gloo", 2, 5.0, 60.0)
    with CollectiveWorkers(task) as workers:
        workers.start()
        share = workers.run_round(1, (0, 1), "")
    assert (share.round, share.problem) == (1, "only 0 of 2 processes of the collective reported a result")
