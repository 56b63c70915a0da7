"""The link to the helper in the rendezvous: messages arrive whole, and a failed start leaves nothing."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import psutil
import pytest

from platform_launch import helper
from platform_launch.launch import link
from platform_launch.launch.link import HelperLink
from platform_launch.rendezvous.messages import Message, decode
from platform_launch.rendezvous.run.launcher import LauncherAlive, RunTask
from platform_launch.rendezvous.run.texts import SendAnswer
from tests.lab.waiting import until
from tests.rendezvous.nodes import fingerprint

TASK = RunTask(fingerprint(0), "127.0.0.1", 29500, 29501, 5.0, 5.0, 5.0, "/dev/null")


def helper_is(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell's script stand in the rendezvous' place."""
    monkeypatch.setattr(helper, "command", lambda _name: ("/bin/sh", "-c", script))


def opened() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Return what calls something at each of many alarms."""

    def ring(act: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: act())
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)

    before = signal.getsignal(signal.SIGALRM)
    yield ring
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_message_that_signals_interrupt_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_alarm: Callable[[Callable[[], object]], None]
) -> None:
    begun, kept = tmp_path / "begun", tmp_path / "kept"
    helper_is(monkeypatch, f"until [ -e {begun} ]; do sleep 0.01; done; exec cat >{kept}")
    heard: Queue[Message | None] = Queue()
    connected = HelperLink(TASK, dict(os.environ), heard.put)
    answer = SendAnswer("key", "x" * 500_000)
    on_alarm(begun.touch)  # the pipe is full by then, and the write under way
    connected.send(answer)
    connected.close()
    lines = [decode(line, Message) for line in kept.read_bytes().splitlines()]
    assert [line for line in lines if not isinstance(line, LauncherAlive)] == [TASK, answer]
    assert heard.get() is None


def test_where_no_second_pipe_can_be_made_the_first_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe2 = os.pipe2
    pipes: list[tuple[int, int]] = []

    def one(flags: int) -> tuple[int, int]:
        if pipes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        pipes.append(pipe2(flags))
        return pipes[0]

    monkeypatch.setattr(os, "pipe2", one)
    before = opened()
    with pytest.raises(OSError, match="Too many open files"):
        HelperLink(TASK, dict(os.environ), lambda _message: None)
    assert opened() == before


@pytest.mark.parametrize("name", ["alive", "rendezvous"])
def test_where_no_thread_can_be_started_no_helper_is_left(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            if self.name == name:
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(link, "Thread", Refused)
    helper_is(monkeypatch, "exec cat >/dev/null")
    heard: list[Message | None] = []
    before, children = opened(), set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="new thread"):
        HelperLink(TASK, dict(os.environ), heard.append)
    assert set(psutil.Process().children()) <= children
    until(lambda: opened() == before)
    assert heard == []
