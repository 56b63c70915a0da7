"""What a launch needs of the machine before anything else."""

from __future__ import annotations

from threading import Thread

import pytest

from platform_launch.errors import InstallationError
from platform_launch.launch import launch


def test_too_few_threads_are_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scarce(Thread):
        left = 5

        def start(self) -> None:
            if not Scarce.left:
                raise RuntimeError("can't start new thread")
            Scarce.left -= 1
            super().start()

    monkeypatch.setattr(launch, "Thread", Scarce)
    with pytest.raises(InstallationError, match="only 5 more threads and processes"):
        launch._expect_threads()
