"""A cable that delays and loses frames, for a kernel without netem: ``bad_link.py PORT CABLE DELAY_S LOSS``.

Copies frames between two interfaces of this network namespace, both ways, until it is killed.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.netns import Host
from tests.lab.waiting import LIMIT_S

_EVERY_PROTOCOL = 0x0003  # ETH_P_ALL
_SIOCETHTOOL, _ETHTOOL_STXCSUM = 0x8946, 0x17
_FRAME_BYTES = 2048


def copy(names: tuple[str, str], delay_s: float, loss: float) -> None:
    """Copy frames for ever; each direction has the delay, and loses this part of its frames."""
    ends = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL)) for _ in names]
    for end, name in zip(ends, names, strict=True):
        end.bind((name, 0))
    chance, number = random.Random(1), 0
    due: list[tuple[float, int, socket.socket, bytes]] = []
    print("copies", flush=True)
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        for end in select.select(ends, [], [], wait_s)[0]:
            frame, (_, _, kind, *_) = end.recvfrom(_FRAME_BYTES)
            if kind == socket.PACKET_OUTGOING or chance.random() < loss:
                continue
            number += 1
            heapq.heappush(due, (time.monotonic() + delay_s, number, ends[end is ends[0]], frame))
        while due and due[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(due)
            to.send(frame)


@contextmanager
def bad_link(
    host: Host, everyone: tuple[Host, ...], *, delay_s: float = 0.0, loss: float = 0.0
) -> Iterator[None]:
    """Let the cable of one host delay and lose frames, each way."""
    for one in everyone:
        with one.entered():
            _compute_checksums("eth0")
        _ip(one.namespace, "link set eth0 gso_max_segs 1")
    _ip(host.switch, "link add cable type veth peer name plug")
    for line in ("link set plug master bridge up", "link set cable up", f"link set {host.port} nomaster"):
        _ip(host.switch, line)
    command = ["ip", "netns", "exec", host.switch, sys.executable, "-m", "tests.lab.bad_link"]
    words = [host.port, "cable", str(delay_s), str(loss)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True, cwd=root) as copying:
        try:
            assert copying.stdout is not None
            assert copying.stdout.readline() == "copies\n"
            yield
        finally:
            copying.kill()
            _ip(host.switch, "link delete plug")
            host.heal()


def _compute_checksums(interface: str) -> None:
    """Let the kernel fill in checksums, which it leaves to the device otherwise (ethtool -K tx off)."""
    value = array.array("B", struct.pack("II", _ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)


def _ip(namespace: str, line: str) -> None:
    done = subprocess.run(
        ["ip", "-n", namespace, *line.split()], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"ip -n {namespace} {line}: {done.stderr}"


if __name__ == "__main__":
    copy((sys.argv[1], sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
