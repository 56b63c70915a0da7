"""The build: pip in a supervised process, with its output in a log and its progress in a callback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from platform_launch.console.log import LogFile
from platform_launch.console.outlet import Outlet
from platform_launch.errors import InstallationError, LaunchError
from platform_launch.events import Event
from platform_launch.supervise import DEFAULT_GRACE_S, Command, Watch
from platform_launch.supervise.channel import Channel, Receiver, open_pipe
from platform_launch.supervise.text import LogText, WholeLines
from platform_launch.text import Phrase, joined
from platform_launch.wheels.lines import BuildStep, advance, failure
from platform_launch.wheels.machine import environment_for
from platform_launch.wheels.ops import Op, build_variables
from platform_launch.wheels.source import without_build_variables
from platform_launch.wheels.target import Target


@dataclass(frozen=True)
class Build:
    """What to build: ``source`` is a writable tree, ``into`` an empty folder.

    ``suffix`` is DeepSpeed's DS_BUILD_STRING, the end of the version, such as ``+1a2b3c4`` for a checkout.
    """

    python: str
    source: Path
    into: Path
    target: Target
    ops: Sequence[Op]
    jobs: int
    suffix: str = ""


def command(build: Build, env: Mapping[str, str]) -> Command:
    """Return the build's command: pip, without isolation, against the installed torch."""
    argv = (
        *(build.python, "-m", "pip", "wheel", "--verbose", "--no-color", "--no-input", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-build-isolation", "--no-deps"),
        *("--wheel-dir", str(build.into), str(build.source)),
    )
    variables = {
        **environment_for(build.python, build_variables(build.target, without_build_variables(env))),
        **{op.variable: "1" for op in build.ops},
        # DeepSpeed compiles file by file without it (setup.py, use_ninja).
        "DS_ENABLE_NINJA": "1",
        "MAX_JOBS": str(build.jobs),
        "PYTHONUNBUFFERED": "1",
    }
    if build.suffix:
        variables.setdefault("DS_BUILD_STRING", build.suffix)
    return Command(argv, variables, cwd=build.source.parent)


def run(
    build: Build,
    env: Mapping[str, str],
    log_path: Path,
    *,
    report: Callable[[Event], None],
    progress: Callable[[BuildStep], None],
) -> Path:
    """Build and return the wheel. Main thread only, see :class:`platform_launch.supervise.Watch`.

    ``progress`` is called with each step, ``report(event)`` with messages for the user. Raises
    InstallationError with the compiler's output if it fails.
    """
    log = LogFile(log_path, report)
    codes: list[int] = []
    watch = Watch(grace_s=DEFAULT_GRACE_S, report=report, ended=lambda _pid, code: codes.append(code))
    # Flush printed text before the build's steps.
    sys.stderr.flush()
    with ExitStack() as stack:
        stack.callback(log.close)
        log.open()
        stack.enter_context(watch)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, nothing)
        output = _Output(Outlet(nothing, lambda _error: None), log, progress)
        stack.callback(output.outlet.close)
        reading, writing = open_pipe()
        watch.follow(Channel(reading, output))
        try:
            watch.start(command(build, env), {0: nothing, 1: writing, 2: writing})
        finally:
            os.close(writing)
        watch.wait()
    if watch.stopped_by is not None:
        stopped = LaunchError(
            Phrase("the build was stopped by {signal}", signal=watch.stopped_by),
            Phrase("its output so far: {log}", log=log_path),
        )
        stopped.exit_code = 128 + signal.Signals[watch.stopped_by]  # as a shell reports it
        raise stopped
    wheels = sorted(build.into.glob("*.whl"))
    if codes != [0] or len(wheels) != 1:
        lines, hint = failure(output.text())
        excerpt = "\n       ".join(lines) or Phrase("it printed nothing")
        raise InstallationError(
            Phrase(
                "the build failed at {op}:\n       {excerpt}",
                op=output.step.op or Phrase("its preparation"),
                excerpt=excerpt,
            ),
            joined(
                filter(None, (hint, Phrase("the whole output: {log}", log=log.path or Phrase("lost")))),
                "; ",
            ),
        )
    return wheels[0]


class _Output(Receiver):
    """Handles a build's output: all of it goes to the log, steps to a callback; the end is kept."""

    _KEPT_BYTES = 8 * 1024 * 1024  # a verbose build of all ops prints several megabytes

    def __init__(self, outlet: Outlet, log: LogFile, progress: Callable[[BuildStep], None]) -> None:
        self.outlet = outlet
        self.step = BuildStep()
        self._log = log
        self._progress = progress
        self._plain = LogText()
        self._lines = WholeLines()
        self._kept = bytearray()

    def feed(self, data: bytes) -> None:
        self._handle(self._lines.feed(self._plain.feed(data)))

    def finish(self) -> None:
        self._handle(self._lines.feed(self._plain.finish()) + self._lines.finish())

    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def _handle(self, lines: bytes) -> None:
        self._log.append(lines, self)
        self._kept += lines
        del self._kept[: -self._KEPT_BYTES]
        for line in lines.decode(errors="replace").splitlines():
            step = advance(self.step, line)
            if step is not self.step:
                self.step = step
                self._progress(step)
