"""An exception as a log shows it: its frames, and what they show.

The innermost call, the package that raised the exception and the package that was called explain more than
its words: a file that vanished while it was renamed means something else than a file that could not be
opened.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from functools import cached_property

from platform_launch.why.lines.line import Line, shown

_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/python3|^<|/importlib/|/bin/[^/.]+$"
    r"|^[\w/]+\.(?:pyx|pxi|pxd)$"  # of a package's compiled part, named by its source folder
)
_PACKAGE = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?P<path>(?P<name>\w[\w-]*).*)")
_STANDARD = re.compile(r".*/lib(?:64)?/python3[\d.]*/(?P<path>(?P<name>\w+).*)")
_LAUNCHER = re.compile(
    r"[/\\]torch[/\\]distributed[/\\](?:run|launch|launcher|elastic)\b|[/\\]horovod[/\\]run(?:ner)?[/\\]|[/\\](?:accelerate[/\\]commands|deepspeed[/\\]launcher)[/\\]"
    r"|/bin/(?:accelerate|deepspeed|horovodrun|torchrun)$"
)
# Python's own import code, between the import statement and the failure.
_IMPORT = re.compile(r"^<frozen importlib|/importlib/")
# Code that re-raises an exception from another thread, process or task.
_HANDS_ON = re.compile(
    r"torch/_utils\.py$|/concurrent/futures/_base\.py$|/(?:multiprocessing|multiprocess|billiard)/pool\.py$"
    r"|/ray/_private/(?:worker|client_mode_hook|auto_init_hook)\.py$|/joblib/(?:parallel|_parallel_backends)\.py$"
)
# What code tries on purpose: then the handler's own exception says what is wrong.
_LOOKUPS = frozenset(("AttributeError", "Empty", "IndexError", "KeyError", "StopIteration"))
_LONGEST_CODE = 1000
# An assertion's message begins with a string after a comma.
_BEGINS_WORDS = re.compile(r""",\s*\(?\s*[fr]{0,2}["']""")
# What a call does, by its line of code or by the library function that contains it. The first match counts.
_OPERATIONS: tuple[tuple[str, str, str], ...] = (
    (
        "delete",
        r"\bos\.(?:remove|unlink|rmdir|removedirs)\(|\.(?:unlink|rmdir)\(|\brmtree\(",
        r"_?rmtree\w*",
    ),
    (
        "rename",
        r"\bos\.(?:rename|renames|replace)\(|\bshutil\.move\(|\.rename\(",
        r"move",
    ),
    (
        "create",
        r"\b(?:os\.)?(?:makedirs|mkdir|mkfifo|symlink|link)\(|\.(?:mkdir|symlink_to)\(",
        r"mkdir|makedirs",
    ),
    (
        "bind",
        r"\.(?:bind|listen)\(|\bstart_server\(|\badd_insecure_port\(",
        r"server_bind|_?bind\w*",
    ),
    (
        "connect",
        r"\.connect(?:_ex)?\(|\bcreate_connection\(|\burlopen\(|\bgetaddrinfo\(",
        r"connect\w*|_new_conn|create_connection|do_open|handle_request|getaddrinfo|gethostbyname",
    ),
    (
        "start a program",
        r"\bsubprocess\.|\bPopen\(|\bos\.exec\w*\(|CalledProcessError\(",
        r"_execute_child|check_call|check_output",
    ),
)
_COMPILED = tuple((name, re.compile(code), re.compile(function)) for name, code, function in _OPERATIONS)
# What only a connection raises, whatever made it.
_CONNECTS = re.compile(
    r"(?:API|Client|New|Proxy|ClientConnector)?Connect(?:ion|or)?(?:Timeout)?(?:Error)?|MaxRetryError|SSLError"
)
TAKES_AWAY = frozenset(("delete", "rename"))


@dataclass(frozen=True)
class TracebackFrame:
    """A place in the code: one entry of a traceback. ``source`` is the line of code, if it was printed."""

    file: str
    line: int
    function: str
    source: str = ""

    @property
    def is_library(self) -> bool:
        """Return whether the user did not write this code."""
        return _LIBRARY.search(self.file) is not None

    @property
    def whole_place(self) -> str:
        """File and function."""
        return f"{self.file} in {self.function}"

    @property
    def is_launcher(self) -> bool:
        """Return whether this is code of a launcher, which also raises when its children have ended."""
        return _LAUNCHER.search(self.file) is not None

    @property
    def package(self) -> str:
        """The installed package it belongs to, ``json (Python)`` for the standard library, "" for the user's
        code.
        """
        if found := _PACKAGE.match(self.file):
            return found["name"]
        found = _STANDARD.match(self.file)
        return f"{found['name']} (Python)" if found else ""

    @property
    def place(self) -> str:
        """File, line and function; the file in a package without the folders above the package."""
        found = _PACKAGE.match(self.file) or _STANDARD.match(self.file)
        inside = f" in {self.function}" if self.function else ""
        return f"{found['path'] if found else self.file}:{self.line}{inside}"


@dataclass(frozen=True)
class Raised:
    """An exception as it was printed.

    ``frames`` begin with the outermost, ``frame`` is the innermost one of the user's own code. ``script`` is
    the program's main file, if the traceback shows it. ``more`` holds the further lines of the message.
    ``handling``: it was raised during the handling of the exception before it, not from it.
    """

    type: str
    message: str
    line: Line
    frame: TracebackFrame | None = None
    frames: tuple[TracebackFrame, ...] = ()
    more: list[Line] = field(default_factory=list)
    handling: bool = False
    script: str = ""

    @cached_property
    def innermost(self) -> TracebackFrame | None:
        """The innermost frame of any code that shows who raised it first."""
        inner = [frame for frame in self.frames if not _IMPORT.search(frame.file)]
        while len(inner) > 1 and inner[-1].function == "__getattr__":
            inner.pop()  # how a library says that its caller asked for something that does not exist
        return inner[-1] if inner and not _HANDS_ON.search(inner[-1].file) else None

    @property
    def entry(self) -> str:
        """The function of the outermost frame."""
        return self.frames[0].function if self.frames else ""

    @property
    def places(self) -> str:
        """The files and functions of all frames, one per line."""
        return "\n".join(frame.whole_place for frame in self.frames)

    @property
    def text(self) -> str:
        """Return the exception's own line."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def is_lookup(self) -> bool:
        """Return whether it only says that something was not found."""
        return self.type.rpartition(".")[2] in _LOOKUPS

    @property
    def only_stopped_waiting(self) -> bool:
        """Return whether it only says that a wait was cancelled, as asyncio does before it says for what."""
        name = self.type.rpartition(".")[2]
        return name == "CancelledError" or (name == "TimeoutError" and not self.message)

    @property
    def ends_well(self) -> bool:
        """Return whether the program just exited, by itself and without an error."""
        return self.type == "SystemExit" and self.message in ("", "0", "None")

    @property
    def has_frames(self) -> bool:
        """Return whether its traceback was printed, not only its last line."""
        return self.frame is not None or self.innermost is not None

    @property
    def whole_message(self) -> str:
        """Return the message with its further lines."""
        lines = [self.message, *(shown(line.text) for line in self.more)]
        return "\n".join(line for line in lines if line)

    @property
    def is_borrowed(self) -> bool:
        """Return whether code outside the package that defines the exception raised it by name."""
        if "." not in self.type or self.innermost is None or not self.innermost.source.startswith("raise "):
            return False
        package = self.innermost.package.removesuffix(" (Python)")
        return not package or package not in self.type  # which may be truncated


def operation(raised: Raised) -> str:
    """Return what the innermost call does: "delete", "rename", "connect" …; "" if that is not shown."""
    inner = raised.innermost
    for name, code, function in _COMPILED:
        if inner is None:
            break
        if code.search(inner.source) or (inner.is_library and function.fullmatch(inner.function)):
            return name
    return "connect" if _CONNECTS.fullmatch(raised.type.rpartition(".")[2]) else ""


def package(raised: Raised) -> str:
    """Return the package whose code raised it, "" if it is the user's own or not known."""
    return raised.innermost.package if raised.innermost is not None else ""


def called(raised: Raised) -> str:
    """Return the package that the user's code called on the way to it, "" if none is shown."""
    own = max((n for n, frame in enumerate(raised.frames) if not frame.is_library), default=-1)
    return next((frame.package for frame in raised.frames[own + 1 :] if frame.package), "")


def condition(source: str) -> str:
    """Return a line of code; of an assertion only the condition, without its message."""
    if not source.startswith("assert ") or len(source) > _LONGEST_CODE:
        return source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            statement = ast.parse(source).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # It continues on the next line, which is not printed.
        return _BEGINS_WORDS.split(source, maxsplit=1)[0]
    test = ast.get_source_segment(source, statement.test) if isinstance(statement, ast.Assert) else None
    return f"assert {test}" if test else source
