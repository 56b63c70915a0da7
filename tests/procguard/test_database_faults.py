"""A database that is locked, full, gone or taken: nothing changes, nothing is lost, the next try works."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from platform_launch.errors import LaunchError
from platform_launch.procguard.api.refused import Superseded, Unavailable
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.history import EventFilter
from platform_launch.procguard.api.wire import OrderAction, WorkerState
from platform_launch.procguard.database import engine as database_engine
from platform_launch.procguard.database import serving
from platform_launch.procguard.database.engine import opened
from platform_launch.procguard.database.store import DatabaseStore
from platform_launch.procguard.database.users import Users
from platform_launch.procguard.database.writer import Writer, try_session_lock
from platform_launch.sentences import quoted
from tests.lab.disk import requires_mount, small_disk
from tests.lab.postgres import Postgres, postgres, requires_postgres
from tests.lab.waiting import LIMIT_S
from tests.procguard.cluster import Cluster


def refuses_every_change(cluster: Cluster) -> None:
    """Assert that a running group of gn6 stays as it is, while its agent is served."""
    control = cluster.control
    before = control.queries.group("g")
    for ask in (
        lambda: control.stop("g", "ann"),
        lambda: control.change_settings("g", GroupSettings(command="x" * 3_000), "ann"),
        lambda: control.create_group(NewGroup(name="h", settings=GroupSettings(command="x" * 3_000)), "ann"),
        lambda: cluster.join("gn7"),
    ):
        with pytest.raises(Unavailable, match="cannot be written") as error:
            ask()
        assert error.value.status == 503
    cluster.say("gn6", WorkerState.EXITED, 1, exit_code=5, ended_s_ago=0.0)
    with pytest.raises(Unavailable):
        control.tick()
    assert control.queries.group("g").model_dump(exclude={"waiting_for"}) == before.model_dump(
        exclude={"waiting_for"}
    )
    assert [group.name for group in control.queries.groups()] == ["g"]
    assert cluster.say("gn6", WorkerState.EXITED, 1, exit_code=5).action is OrderAction.RUN, (
        "what was decided still holds"
    )


def goes_on(cluster: Cluster) -> None:
    """Assert that the decision which could not be written is made from the reports that were repeated."""
    cluster.say("gn6", WorkerState.EXITED, 1, exit_code=5)
    cluster.control.tick()
    cluster.control.tick()
    group = cluster.control.queries.group("g")
    assert group.phase is GroupPhase.FAILED
    assert group.failure is not None
    assert group.failure.exit_code == 5
    cluster.join("gn7")
    cluster.kill_and_start()
    assert cluster.control.queries.group("g").phase is GroupPhase.FAILED
    assert len(cluster.control.queries.worker_names()) == 2


def test_a_locked_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_engine, "BUSY_TIMEOUT_S", 0.05)
    with serving(f"sqlite:///{tmp_path}/procguard.db") as database:
        cluster = Cluster(database.store)
        cluster.running("gn6")
        with closing(sqlite3.connect(tmp_path / "procguard.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            refuses_every_change(cluster)
            other.execute("ROLLBACK")
        goes_on(cluster)


def test_connections_that_all_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the database does not answer: who comes next is told so, and nothing breaks."""
    with opened(f"sqlite:///{tmp_path}/procguard.db") as engine, ExitStack() as held:
        monkeypatch.setattr(engine.pool, "_timeout", 0.05)
        writer = Writer(engine, held.enter_context(engine.connect()))
        with suppress(PoolTimeoutError):
            while True:
                held.enter_context(engine.connect())
        with pytest.raises(Unavailable):
            Users(engine, "ann").find("ann")
        with pytest.raises(Unavailable):
            DatabaseStore(engine, writer).events(None, 1, EventFilter())
        writer.close()
        held.enter_context(engine.connect())
        with pytest.raises(Unavailable):
            writer.sign()


@requires_mount
def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk, serving(f"sqlite:///{disk}/procguard.db") as database:
        cluster = Cluster(database.store)
        cluster.running("gn6")
        filling = disk / "filling"
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 512):
                pass
        # What is left of the last page of the log of changes may hold one more.
        for _ in range(1000):
            try:
                cluster.control.record("ann", "fill", "disk", quoted("x" * 4_000))
            except Unavailable:
                break
        refuses_every_change(cluster)
        filling.unlink()
        goes_on(cluster)


def test_a_connection_that_the_database_still_holds_for_ours(postgres_server: Postgres) -> None:
    url = postgres_server.new_database()
    with serving(url) as database:
        cluster = Cluster(database.store)
        cluster.running("gn6")
        name = url.rpartition("/")[2]
        # Our connection is cut; another that has not signed as a server holds the lock, as our own would.
        postgres_server.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        with opened(url) as engine, engine.connect() as zombie:
            deadline = time.monotonic() + LIMIT_S
            while not try_session_lock(zombie):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            refuses_every_change(cluster)
            # At once: PostgreSQL notices the end of a connection some time after it.
            zombie.exec_driver_sql("SELECT pg_advisory_unlock_all()")
        goes_on(cluster)


@requires_postgres
def test_a_postgresql_that_restarts_and_one_that_was_taken_meanwhile() -> None:
    with postgres() as server, serving(url := server.new_database()) as database:
        cluster = Cluster(database.store)
        cluster.running("gn6")
        server.stop()
        refuses_every_change(cluster)
        server.start()
        goes_on(cluster)  # claimed again: nobody came in between
        with pytest.raises(LaunchError, match="another server uses"), serving(url):
            pass
        server.stop()
        cluster.clock_s += 6
        with pytest.raises(Unavailable):
            cluster.control.tick()
        server.start()
        with serving(url):  # a second server was faster
            with pytest.raises(Superseded, match="another server has served"):
                cluster.control.tick()
            with pytest.raises(Unavailable, match="another server has served"):
                cluster.say("gn6")
        with pytest.raises(Superseded):
            cluster.control.start("g", "ann")  # also when that one has gone again
