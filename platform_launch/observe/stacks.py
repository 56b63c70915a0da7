"""faulthandler's output → the threads of a process, and which of their lines are the user's own code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_THREAD = re.compile(
    r"(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3[.\d]*/|^<frozen |/runpy\.py$"
    r"|/(?:_platform_launch_look|observe/hook/sitecustomize)\.py$"
)
_MOST_THREADS = 100
_MOST_FRAMES = 100
_MOST_SHOWN = 6


@dataclass(frozen=True)
class PythonFrame:
    """A line of Python that is being executed."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def is_library(self) -> bool:
        """Whether this is the interpreter's or an installed package's code."""
        return _LIBRARY.search(self.file) is not None


@dataclass(frozen=True)
class ThreadStack:
    """A thread of Python, the innermost frame first; ``name`` if the interpreter reports it (3.14).

    ``ident`` is its identity, as Python and torch know it; 0 if it is unknown.
    """

    main: bool
    frames: tuple[PythonFrame, ...]
    name: str = ""
    ident: int = field(default=0, compare=False)

    @property
    def own(self) -> PythonFrame | None:
        """The innermost frame of the user's own code, otherwise the innermost of all."""
        return next((frame for frame in self.frames if not frame.is_library), next(iter(self.frames), None))

    @property
    def functions(self) -> tuple[tuple[str, str], ...]:
        """The functions it is in, which do not change while a loop runs in one of them."""
        return tuple((frame.file, frame.function) for frame in self.frames)


def parse_stacks(text: str, main_thread: int | None = None) -> tuple[ThreadStack, ...]:
    """Read the stacks of one process, the main thread first. ``main_thread`` is its identity.

    If there are several dumps, the last is read. A thread without a Python frame is left out.
    """
    dumps: list[list[tuple[int, str, list[PythonFrame]]]] = [[]]
    for line in text.splitlines():
        if found := _THREAD.fullmatch(line.rstrip()):
            ident = int(found["ident"], 16)
            if any(known == ident for known, _, _ in dumps[-1]):
                dumps.append([])
            dumps[-1].append((ident, (found["name"] or "").strip(), []))
        elif dumps[-1] and (found := _FRAME.fullmatch(line)):
            number = int(found["line"]) if found["line"].isdecimal() else 0
            frames = dumps[-1][-1][2]
            if len(frames) < _MOST_FRAMES:
                frames.append(PythonFrame(found["file"], number, found["function"]))
    threads = dumps[-1][:_MOST_THREADS]
    idents = [ident for ident, _, _ in threads]
    # faulthandler lists the newest thread first.
    main = main_thread if main_thread in idents else idents[-1] if idents else None
    stacks = [
        ThreadStack(ident == main, tuple(frames), name, ident) for ident, name, frames in threads if frames
    ]
    return tuple(sorted(stacks, key=lambda stack: not stack.main))


def main_stack(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    """Return the main thread's stack, if it is known."""
    return next((thread for thread in threads if thread.main), None)


def own_first(frames: Sequence[PythonFrame]) -> list[PythonFrame]:
    """Return the most useful frames: the user's own, otherwise the innermost ones."""
    own = [frame for frame in frames if not frame.is_library]
    return list((own or frames)[:_MOST_SHOWN])
