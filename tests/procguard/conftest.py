"""What tests of ProcGuard share: an empty database of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.postgres import Postgres, postgres, requires_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL of this test run."""
    with postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=requires_postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database: every test that takes it runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data/procguard.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()
