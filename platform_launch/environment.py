"""The environment of a process: a read-only snapshot of its variables, and values with their source.

This is the only module that reads ``os.environ``. Everything else gets an :class:`Environment`, so that any
platform's node can be simulated anywhere.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from platform_launch.errors import TopologyError, shown
from platform_launch.text import Phrase
from platform_launch.values import dataclass

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_PR_SET_DUMPABLE = 4
_LARGEST_FILE = 8 * 1024 * 1024  # bytes; a host list of 100 000 nodes is smaller


@dataclass(frozen=True)
class Sourced(Generic[T_co]):
    """A value and where it was read: a variable, a flag, or a phrase such as ``first host of SM_HOSTS``."""

    value: T_co
    source: str


class Environment(Mapping[str, str]):
    """Variables of one process. An empty or blank value counts as unset, because platforms export both.

    ``root`` is the root of absolute paths of platform files (hostfiles, rendezvous files); tests set it to a
    folder. ``hostname`` and ``address`` are this machine's own name and IPv4 address.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        root: Path = Path("/"),
        hostname: str | None = None,
        address: str | None = None,
    ) -> None:
        given = dict(variables)
        self._variables = {name: value for name, value in given.items() if value.strip()}
        self._blank = {name: value for name, value in given.items() if name not in self._variables}
        self._root = root
        self.hostname = hostname if hostname is not None else socket.gethostname()
        if address is not None:
            self.address = address  # a cached_property: a value put here first is never computed

    @cached_property
    def address(self) -> str:
        """This machine's address for other machines, or its hostname if there is none."""
        return _routed_address() or self.hostname

    @classmethod
    def of_this_process(cls, *names: str) -> Environment:
        """Return a snapshot of ``os.environ``, or only of the variables of these names."""
        return cls({name: os.environ[name] for name in names or os.environ if name in os.environ})

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def is_blank(self, name: str) -> bool:
        """Return whether a variable is set but empty: CUDA reads that as "no GPU", not as "unset"."""
        return name in self._blank

    def inherited(self) -> dict[str, str]:
        """Return every variable, also blank ones: what a child process inherits.

        A blank may have a meaning: CUDA reads ``CUDA_VISIBLE_DEVICES=`` as "no GPU".
        """
        return {**self._variables, **self._blank}

    def text(self, name: str) -> Sourced[str] | None:
        """Return the stripped value, or None if unset."""
        value = self.get(name)
        return None if value is None else Sourced(value.strip(), name)

    def integer(self, name: str, minimum: int = 0) -> Sourced[int] | None:
        """Return a whole number of at least ``minimum``, or None if unset.

        Raises TopologyError for any other value.
        """
        value = self.get(name)
        if value is None:
            return None
        return Sourced(parse_integer(value, name, minimum), name)

    def port(self, name: str) -> Sourced[int] | None:
        """Return a TCP port, or None if unset or if the value is a Kubernetes service link (``tcp://…``).

        Kubernetes exports ``<SERVICE>_PORT=tcp://ip:port`` for every service, so a service called ``master``
        sets MASTER_PORT to something that is no port. The user did not set it, so it is ignored.
        """
        value = self.get(name)
        if value is None or is_service_link(value):
            return None
        return Sourced(parse_port(value, name), name)

    def read_file(self, path: str) -> str | None:
        """Return the text of a platform's file, or None if it does not exist or cannot be read.

        The path may come from a variable, so only regular files of a sane size are read.
        """
        file = self._root / path.lstrip("/")
        try:
            if not file.is_file() or file.stat().st_size > _LARGEST_FILE:
                return None
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def file_names(self, folder: str) -> tuple[str, ...]:
        """Return the sorted names in a platform's folder; empty if there is none."""
        try:
            return tuple(sorted(entry.name for entry in (self._root / folder.lstrip("/")).iterdir()))
        except OSError:
            return ()

    def names_of_this_host(self) -> frozenset[str]:
        """Return every name of this machine that a host list may use, long and short."""
        names = {self.hostname, self.get("HOSTNAME", "")} - {""}
        return frozenset(names | {name.split(".", 1)[0] for name in names})


def parse_integer(value: str, source: str, minimum: int = 0) -> int:
    """Read a plain decimal number (``int()`` would also accept ``1_0``, ``+1`` and Arabic digits)."""
    text = value.strip()
    # No count here has nine digits, and int() refuses numbers with thousands of them.
    if text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= minimum:
        return int(text)
    digits = text.removeprefix("-")
    problem = (
        Phrase("out of range") if digits.isascii() and digits.isdigit() else Phrase("not a whole number")
    )
    raise TopologyError(
        Phrase(
            "{source}={value} is {problem}: expected {minimum}–999999999",
            source=source,
            value=shown(value),
            problem=problem,
            minimum=minimum,
        ),
        Phrase("correct {source}, or unset it and pass the matching flag", source=source),
    )


def parse_port(value: str, source: str) -> int:
    """Read a TCP port, 1–65535."""
    text = value.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= 65535):
        raise TopologyError(
            Phrase("{source}={value} is not a port: expected 1–65535", source=source, value=shown(value)),
            Phrase("unset {source} to use the default, or pass --master-port", source=source),
        )
    return int(text)


def is_service_link(value: str) -> bool:
    """Return whether a value is a Kubernetes service link such as ``tcp://10.96.3.4:29500``."""
    return value.strip().startswith(("tcp://", "udp://", "sctp://"))


def hide_from_neighbours(*secrets: str) -> None:
    """Hide these variables, and this process's memory, from other processes of the same user.

    ``/proc/PID/environ`` shows the memory that held the variables at startup, so they are overwritten there.
    The process is also made undumpable: the kernel then lets only the superuser trace it or read its memory.
    """
    import ctypes  # most commands have no secret

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name in secrets:
        place = libc.getenv(name.encode())
        if place is not None:
            ctypes.memset(place, 0, len(os.fsencode(os.environ[name])))
            del os.environ[name]
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _routed_address() -> str | None:
    """Return the address that the kernel would use to reach other machines. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 of RFC 5737: never a real host
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if address.startswith("127.") else address
