"""What the RDMA ports of a running job count: state and error counters, from ``/sys/class/infiniband``.

The files are those of Linux, Documentation/ABI/stable/sysfs-class-infiniband; ``hw_counters`` are the
driver's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from platform_launch.hardware.kernel_files import text
from platform_launch.hardware.rdma import HcaPort

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
    """One port at one moment. ``state`` is the kernel's word, ``ACTIVE`` when it carries traffic, empty when
    the port is gone. ``counters`` only grow, and hold those that this adapter has."""

    device: str
    port: int
    state: str
    counters: Mapping[str, int]

    @property
    def place(self) -> str:
        """How NCCL_IB_HCA names it."""
        return f"{self.device}:{self.port}"


def read(ports: Iterable[HcaPort], sys_root: Path = Path("/sys")) -> tuple[PortHealth, ...]:
    """Read each of these ports."""
    return tuple(_port(port, sys_root) for port in ports)


def _port(port: HcaPort, sys_root: Path) -> PortHealth:
    folder = sys_root / "class/infiniband" / port.device / "ports" / str(port.port)
    counters: dict[str, int] = {}
    for name in (*LINK_COUNTERS, *ERROR_COUNTERS):
        for kind in ("counters", "hw_counters"):
            count = text(folder / kind / name)
            if count.isdecimal():
                counters[name] = int(count)
    return PortHealth(port.device, port.port, text(folder / "state").rpartition(": ")[2], counters)
