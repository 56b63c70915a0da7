"""InfiniBand and RoCE ports, their state and error counters, from ``/sys/class/infiniband``.

The files are those of Linux, Documentation/ABI/stable/sysfs-class-infiniband; ``hw_counters`` are the
driver's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from platform_launch.hardware.kernel_files import entries, text

_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class HcaPort:
    """One port of an RDMA adapter. ``link_layer`` is ``InfiniBand`` or ``Ethernet`` (RoCE).

    ``gids`` pairs the index of each non-zero GID with its type, e.g. ``(3, "RoCE v2")``. ``pci`` is the
    adapter's address on the PCI bus, empty if unknown.
    """

    device: str
    port: int
    active: bool
    link_layer: str
    rate_gbps: float | None
    gids: tuple[tuple[int, str], ...] = ()
    pci: str = ""


def find(sys_root: Path) -> tuple[HcaPort, ...]:
    """Return every port of every adapter, active or not, in order of device and port."""
    devices = sys_root / "class/infiniband"
    return tuple(
        _port(device, port, devices / device / "ports" / port)
        for device in sorted(entries(devices), key=_natural)
        for port in sorted(entries(devices / device / "ports"), key=_natural)
    )


def _port(device: str, port: str, folder: Path) -> HcaPort:
    gids = sorted(entries(folder / "gids"), key=int)
    filled = [index for index in gids if text(folder / "gids" / index) not in ("", _ZERO_GID)]
    return HcaPort(
        device=device,
        port=int(port),
        active=text(folder / "state").startswith("4:"),
        link_layer=text(folder / "link_layer"),
        rate_gbps=parse_rate(text(folder / "rate")),
        gids=tuple((int(index), text(folder / "gid_attrs/types" / index)) for index in filled),
        pci=_address(folder.parent.parent / "device"),
    )


def _address(device: Path) -> str:
    return device.resolve().name if device.is_symlink() else ""


def parse_rate(rate: str) -> float | None:
    """Read ``400 Gb/sec (4X NDR)`` as 400.0, None if the kernel writes anything else."""
    number, _, unit = rate.partition(" ")
    try:
        return float(number) if unit.startswith("Gb/sec") else None
    except ValueError:
        return None


def _natural(name: str) -> tuple[str, int]:
    """Sort mlx5_2 before mlx5_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


LINK_COUNTERS = ("link_downed", "link_error_recovery")
ERROR_COUNTERS = (
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "rnr_nak_retry_err",
)


@dataclass(frozen=True, slots=True)
class PortHealth:
    """One port at one moment. ``state`` is the kernel's word, ``ACTIVE`` when it carries traffic, empty if
    the port no longer exists. ``counters`` only grow; they are those that this adapter has.
    """

    device: str
    port: int
    state: str
    counters: Mapping[str, int]

    @property
    def place(self) -> str:
        """Its name in NCCL_IB_HCA."""
        return f"{self.device}:{self.port}"


def read_health(ports: Iterable[HcaPort], sys_root: Path = Path("/sys")) -> tuple[PortHealth, ...]:
    """Read each of these ports."""
    return tuple(_health(port, sys_root) for port in ports)


def _health(port: HcaPort, sys_root: Path) -> PortHealth:
    folder = sys_root / "class/infiniband" / port.device / "ports" / str(port.port)
    counters: dict[str, int] = {}
    for name in (*LINK_COUNTERS, *ERROR_COUNTERS):
        for kind in ("counters", "hw_counters"):
            count = text(folder / kind / name)
            if count.isdecimal():
                counters[name] = int(count)
    return PortHealth(port.device, port.port, text(folder / "state").rpartition(": ")[2], counters)
