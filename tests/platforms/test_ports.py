"""Ports derived from job ids: the same on every node, apart between jobs, out of the way of others."""

from __future__ import annotations

import pytest

from platform_launch.platforms.ports import port_of_job


@pytest.mark.parametrize(
    ("job_id", "number"),
    [("200505", 200505), ("314827.server1", 314827), ("123[4].server", 123), ("7", 7), ("8000", 0)],
)
def test_the_leading_number_of_a_job_id_decides(job_id: str, number: int) -> None:
    assert port_of_job(job_id) == 12000 + 2 * (number % 8000)


@pytest.mark.parametrize("job_id", ["", "ƒ2Vxyz", "job-7", "٣"])
def test_a_job_id_without_a_number_gives_no_port(job_id: str) -> None:
    assert port_of_job(job_id) is None


def test_jobs_in_a_row_never_share_a_port_or_its_neighbour() -> None:
    ports = [port for job in range(90_000, 98_000) if (port := port_of_job(str(job)))]
    taken = {port + offset for port in ports for offset in (0, 1)}
    assert len(taken) == 2 * 8_000
    assert min(taken) >= 1024
    assert max(taken) < 32_768  # Linux's ephemeral ports begin there


def test_a_job_id_of_any_length_gives_a_port() -> None:
    assert port_of_job("9" * 5000) is not None
