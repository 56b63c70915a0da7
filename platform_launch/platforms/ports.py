"""Ports that every node of a job computes for itself.

``port_of_job`` is the MASTER_PORT of batch systems that give none: even, another one for the next job, and
below Linux's ephemeral range (32768), so that no outgoing connection sits on it. ``own_ports`` are for this
product's own use beside a MASTER_PORT: odd, so that they are never another job's computed MASTER_PORT.
"""

from __future__ import annotations

import re
import zlib

from platform_launch.environment import Sourced
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase

_FIRST_PORT = 12_000
_JOBS_APART = 8_000


def port_of_job(job_id: str) -> int | None:
    """Return the port of a job: its leading number counts (``314827.server1``, ``123[4].server``)."""
    number = re.match(r"[0-9]+", job_id)
    if number is None:
        return None
    return _FIRST_PORT + 2 * (int(number[0][-12:]) % _JOBS_APART)


# Kubernetes gives ports from 30000 to services.
_OWN_PORTS = range(12_001, 30_000, 2)
# What torchrun and launchers use by default.
_AVOIDED = range(29_400, 29_601)


def own_ports(master_port: int, count: int) -> tuple[int, ...]:
    """Return ``count`` ports for this product's own use; neighbouring MASTER_PORTs get others."""
    found: list[int] = []
    number = 0
    while len(found) < count:
        port = _OWN_PORTS[zlib.crc32(f"platform_launch {master_port} {number}".encode()) % len(_OWN_PORTS)]
        number += 1
        if port not in (*found, *_AVOIDED) and abs(port - master_port) > 2:
            found.append(port)
    return tuple(found)


def set_derived_port(reading: Reading, job_id: Sourced[str] | None) -> None:
    """Derive the port from the number in the job id, unless MASTER_PORT is set."""
    port = port_of_job(job_id.value) if job_id else None
    if job_id and port and reading.master_port is None:
        reading.default_port = Sourced(
            port, Phrase("derived from {job_id_source}", job_id_source=job_id.source)
        )
