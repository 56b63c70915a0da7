"""A rendezvous port every node derives from the job id alone, for batch systems that give none.

Even, so that the next port is free for this product's own use; two jobs that follow one another never
share it; below Linux's ephemeral range (32768), so that no outgoing connection sits on it.
"""

from __future__ import annotations

import re

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


def set_derived_port(reading: Reading, job_id: Sourced[str] | None) -> None:
    """Fill in the port when nobody exported one and the job id has a number."""
    port = port_of_job(job_id.value) if job_id else None
    if job_id and port and reading.master_port is None:
        reading.default_port = Sourced(
            port, Phrase("derived from {job_id_source}", job_id_source=job_id.source)
        )
