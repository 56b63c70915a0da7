"""Hosts made of network namespaces: real interfaces, addresses, names and cables, on one machine.

    with hosts(2) as (node0, node1):
        node1.run(["python", "-c", "import socket; print(socket.gethostbyname('node0'))"])

A switch (bridge) has a namespace of its own, so nothing appears in the machine's own network, and every lab
can use the same addresses. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from platform_launch.rendezvous.loop import _only_loop
from tests.lab.needs import Need
from tests.lab.waiting import LIMIT_S, until

_SUBNET = "10.213.0"
_labs = count()
_NETWORK = 0x40000000  # CLONE_NEWNET

# Runs in the new UTS namespace: names the host, then becomes the command (no process in between, so that
# signals sent to it arrive).
_NAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'


@dataclass(frozen=True)
class Host:
    """One host. ``namespace`` is unique on this machine, ``name`` only among the lab's hosts."""

    name: str
    namespace: str
    address: str
    switch: str
    port: str

    @property
    def etc(self) -> Path:
        """Files here replace those of the same name in /etc for commands on this host."""
        return Path("/etc/netns") / self.namespace

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the command line that runs ``argv`` on this host, as one process throughout."""
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _NAMED, self.name]
        return [*enter, *map(str, argv)]

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = LIMIT_S,
        **kwargs: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and return what it said. ``env`` is added to this process's own."""
        return subprocess.run(
            self.command(argv),
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **kwargs,
        )

    def popen(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.Popen[str]:
        """Start a command, its output joined in ``stdout`` unless told otherwise; the pid is its own."""
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **kwargs}
        environment = {**os.environ, **(env or {})}
        # What a faulty program writes need not be text.
        return subprocess.Popen(
            self.command(argv), env=environment, text=True, errors="backslashreplace", **kwargs
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let this thread open sockets on the host and start processes there. It knows no names."""
        with Path("/proc/thread-self/ns/net").open("rb") as home:
            with Path("/run/netns", self.namespace).open("rb") as there:
                _set_namespace(there.fileno())
            known = _only_loop.cache_info().currsize
            try:
                yield
            finally:
                _set_namespace(home.fileno())
                if not known:  # one that was started meanwhile stays on the host
                    _only_loop.cache_clear()

    def cut(self) -> None:
        """Pull the cable: packets vanish without an answer."""
        _ip(f"-n {self.switch} link set {self.port} down")

    def lose_port(self, port: int) -> None:
        """Lose all that this host sends to a port of other hosts, as a firewall does that drops it."""
        _ip(f"-n {self.namespace} rule add ipproto tcp dport {port} blackhole")

    def find_port(self, port: int) -> None:
        """Undo :meth:`lose_port`."""
        _ip(f"-n {self.namespace} rule delete ipproto tcp dport {port} blackhole")

    def lose_large_packets(self, most_bytes: int) -> None:
        """Lose packets larger than this on the cable, as where one switch has no jumbo frames."""
        _ip(f"-n {self.namespace} link set eth0 gso_max_segs 1")
        _ip(f"-n {self.switch} link set {self.port} mtu {most_bytes}")

    def part(self) -> None:
        """Plug the cable into another switch: only those who were parted too are reached from here."""
        _ip(f"-n {self.switch} link add other type bridge forward_delay 0", check=False)
        _ip(f"-n {self.switch} link set other up")
        _ip(f"-n {self.switch} link set {self.port} master other")

    def heal(self) -> None:
        """Plug the cable in again, where it was."""
        _ip(f"-n {self.switch} link set {self.port} master bridge up")


@contextmanager
def hosts(wanted: int | Sequence[str]) -> Iterator[tuple[Host, ...]]:
    """Give hosts that reach each other by name, and take them away again.

    They have the names ``wanted``; a number of them is called node0, node1, …

    Whatever still runs on them at the end is killed.
    """
    names = [f"node{n}" for n in range(wanted)] if isinstance(wanted, int) else wanted
    lab = f"lab{os.getpid()}x{next(_labs)}"
    switch = f"{lab}-switch"
    made = tuple(
        Host(name, f"{lab}-{name}", f"{_SUBNET}.{n + 1}", switch, f"port{n}") for n, name in enumerate(names)
    )
    try:
        _build(switch, made)
        yield made
    finally:
        _demolish(switch, made)


def _build(switch: str, made: tuple[Host, ...]) -> None:
    _batch([f"netns add {name}" for name in (switch, *(host.namespace for host in made))])
    # The bridge comes first, so that no cable has the same index at both ends: the kernel takes such an
    # interface for a physical one and reports its carrier up to a second late.
    _batch(["link add bridge type bridge forward_delay 0", "link set bridge up"], switch)
    _batch([f"link add eth0 netns {h.namespace} type veth peer name {h.port} netns {switch}" for h in made])
    _batch([f"link set {host.port} master bridge up" for host in made], switch)
    names = "".join(f"{host.address} {host.name}\n" for host in made)
    for host in made:
        interfaces = ["link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up"]
        _batch(interfaces, host.namespace)
        host.etc.mkdir(parents=True)
        (host.etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        # Nobody listens there, so that any other name fails at once.
        (host.etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        (host.etc / "hostname").write_text(f"{host.name}\n")
    for host in made:
        _await_carrier(host)


def _await_carrier(host: Host) -> None:
    show = f"-n {host.namespace} link show eth0"
    until(lambda: " state UP " in _ip(show), f"the cable of {host.namespace} stays dead", pause_s=0.01)


def _demolish(switch: str, made: tuple[Host, ...]) -> None:
    """Undo :func:`_build`, also one that stopped half way.

    A namespace lives on while a process is in it, so the cables are deleted by name.
    """
    for host in made:
        for pid in _ip(f"netns pids {host.namespace}", check=False).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip(f"-n {switch} link delete {host.port}", check=False)
        _ip(f"netns delete {host.namespace}", check=False)
        shutil.rmtree(host.etc, ignore_errors=True)
    _ip(f"netns delete {switch}", check=False)


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is of Python 3.12
    assert libc.setns(descriptor, _NETWORK) == 0, os.strerror(ctypes.get_errno())


def _ip(arguments: str, *, check: bool = True) -> str:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"ip {arguments}: {done.stderr}"
    return done.stdout


def _batch(lines: list[str], namespace: str | None = None) -> None:
    inside = ["-n", namespace] if namespace else []
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        ["ip", *inside, "-batch", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{text}"


@cache
def why_no_hosts() -> str:
    """Return why this machine cannot build hosts, empty when it can."""
    if os.geteuid() != 0:
        return "needs root to build hosts from network namespaces"
    missing = [tool for tool in ("ip", "unshare", "sh") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (iproute2, util-linux) to build hosts from network namespaces"
    try:
        with hosts(1) as (host,):
            done = host.run(["true"])
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        return f"the kernel refuses network namespaces: {error}"
    return f"the kernel refuses network namespaces: {done.stderr}" if done.returncode else ""


requires_netns = Need("network namespaces", why_no_hosts).mark
