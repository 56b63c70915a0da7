"""What an exception's frames tell: what the innermost call does, who raised it, who was called, what failed.

An exception is explained by these before it is explained by its words: a file that vanished while it was
renamed means something else than a file that could not be opened.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from platform_launch.why.messages.exceptions import Raised, TracebackFrame

_LONGEST_CODE = 1000
# What an assertion says begins with a text behind a comma.
_BEGINS_WORDS = re.compile(r""",\s*\(?\s*[fr]{0,2}["']""")
# What a call does, by the line of code that makes it or by the function of a library that it is in. The first
# that fits is taken.
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
# What only a connection raises, wherever it was made.
_CONNECTS = re.compile(
    r"(?:API|Client|New|Proxy|ClientConnector)?Connect(?:ion|or)?(?:Timeout)?(?:Error)?|MaxRetryError|SSLError"
)
TAKES_AWAY = frozenset(("delete", "rename"))
_PLACE = re.compile(r"(?P<file>.+) in (?P<function>.*)")


def operation(raised: Raised) -> str:
    """Return what the innermost call does: "delete", "rename", "connect" …; "" if nothing shows it."""
    inner = raised.innermost
    for name, code, function in _COMPILED:
        if inner is None:
            break
        if code.search(inner.source) or (inner.is_library and function.fullmatch(inner.function)):
            return name
    return "connect" if _CONNECTS.fullmatch(raised.type.rpartition(".")[2]) else ""


def package(raised: Raised) -> str:
    """Return the package whose code raised it, "" if that is the user's own or not known."""
    return raised.innermost.package if raised.innermost is not None else ""


def called(raised: Raised) -> str:
    """Return the package that the user's own code called on the way to it, "" where none is seen."""
    frames = list(_frames(raised))
    own = max((n for n, frame in enumerate(frames) if not frame.is_library), default=-1)
    return next((frame.package for frame in frames[own + 1 :] if frame.package), "")


def condition(source: str) -> str:
    """Return a line of code; of an assertion only the condition, not what is said where it fails."""
    if not source.startswith("assert ") or len(source) > _LONGEST_CODE:
        return source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            statement = ast.parse(source).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # It goes on in the next line, which is not printed.
        return _BEGINS_WORDS.split(source, maxsplit=1)[0]
    test = ast.get_source_segment(source, statement.test) if isinstance(statement, ast.Assert) else None
    return f"assert {test}" if test else source


def _frames(raised: Raised) -> Iterator[TracebackFrame]:
    for place in raised.places.split("\n"):
        if found := _PLACE.fullmatch(place):
            yield TracebackFrame(found["file"], 0, found["function"])
