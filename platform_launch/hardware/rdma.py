"""InfiniBand and RoCE ports, from ``/sys/class/infiniband``.

The files are those of Linux, Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class HcaPort:
    """One port of an RDMA adapter. ``link_layer`` is ``InfiniBand`` or ``Ethernet`` (RoCE).

    ``gids`` pairs the index of each non-zero GID with its type, e.g. ``(3, "RoCE v2")``.
    """

    device: str
    port: int
    active: bool
    link_layer: str
    rate_gbps: float | None
    gids: tuple[tuple[int, str], ...] = ()


def find(sys_root: Path) -> tuple[HcaPort, ...]:
    """Return every port of every adapter, active or not, in order of device and port."""
    devices = sys_root / "class/infiniband"
    return tuple(
        _port(device, port, devices / device / "ports" / port)
        for device in sorted(_names(devices), key=_natural)
        for port in sorted(_names(devices / device / "ports"), key=_natural)
    )


def _port(device: str, port: str, folder: Path) -> HcaPort:
    gids = sorted(_names(folder / "gids"), key=int)
    filled = [index for index in gids if _read(folder / "gids" / index) not in ("", _ZERO_GID)]
    return HcaPort(
        device=device,
        port=int(port),
        active=_read(folder / "state").startswith("4:"),
        link_layer=_read(folder / "link_layer"),
        rate_gbps=parse_rate(_read(folder / "rate")),
        gids=tuple((int(index), _read(folder / "gid_attrs/types" / index)) for index in filled),
    )


def parse_rate(text: str) -> float | None:
    """Read ``400 Gb/sec (4X NDR)`` as 400.0, None where the kernel writes anything else."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) if unit.startswith("Gb/sec") else None
    except ValueError:
        return None


def _natural(name: str) -> tuple[str, int]:
    """Sort mlx5_2 before mlx5_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _read(path: Path) -> str:
    """Return a file's stripped text. A GID entry that is not in use has a type file that cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 256).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
