"""The thread behind the control loop, the charts and the limit on logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from platform_launch.procguard.api.refused import Superseded, Unavailable
from platform_launch.procguard.server.periodic import PeriodicThread
from tests.lab.waiting import until


class Work:
    """Raises what it is given, one after the other and the last again and again, or returns it."""

    def __init__(self, *results: Exception | str) -> None:
        self._results = list(results)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, Exception):
            raise result
        return result


@contextmanager
def repeated(work: Work) -> Iterator[PeriodicThread]:
    thread = PeriodicThread("test", 0.001, work, "it is not done")
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


@pytest.mark.parametrize(
    ("result", "trouble", "traceback"),
    [
        (Unavailable("database-away", reason="locked"), "the database cannot be used: locked", False),
        (OSError("the disk is gone"), "the disk is gone", False),
        ("there is too much", "there is too much", False),
        (RuntimeError("a fault"), "a fault", True),
    ],
)
def test_what_goes_wrong_is_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture, result: Exception | str, trouble: str, traceback: bool
) -> None:
    work = Work(result)
    with repeated(work) as thread:
        until(lambda: work.calls >= 5)
        assert thread.trouble == trouble
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [bool(record.exc_info) for record in found] == [traceback]
    assert "it is not done" in found[0].getMessage()


def test_it_is_logged_again_when_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(OSError("the disk is gone"), "", OSError("the disk is gone"), "")
    with repeated(work) as thread:
        until(lambda: work.calls >= 5)
        assert thread.trouble == ""
    assert len(caplog.records) == 2


def test_another_server_ends_it() -> None:
    work = Work("", Superseded("database-taken"), "never reached")
    with repeated(work) as thread:
        until(lambda: thread.superseded is not None)
        assert "another server" in thread.trouble
    assert work.calls == 2
