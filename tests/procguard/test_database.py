"""The database, on SQLite and on PostgreSQL: its schema, the claim, users, and what is read back."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from platform_launch.errors import InputError, LaunchError
from platform_launch.procguard.api.refused import NotFound, RequestRefused
from platform_launch.procguard.api.shapes.groups import GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.history import EventFilter
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.control.control import Control
from platform_launch.procguard.database import accounts, serving
from platform_launch.procguard.database.engine import DatabaseError, opened
from platform_launch.procguard.database.engine import database_url as read_url
from platform_launch.sentences import quoted
from tests.procguard.cluster import Cluster

SERVER = """
import sys
from platform_launch.procguard.database import serving
with serving(sys.argv[1]):
    print("serving", flush=True)
    sys.stdin.read()
"""


def test_a_database_of_another_schema_is_left_alone(database_url: str) -> None:
    with serving(database_url):
        pass
    with opened(database_url) as engine, engine.begin() as connection:
        connection.execute(text("UPDATE server SET schema = 9999"))
    for use in (serving(database_url), accounts(database_url, "root")):
        with pytest.raises(LaunchError, match="schema 9999, this program needs schema") as error, use:
            pass
        assert "version" in error.value.hint


def test_a_second_server_is_told_who_serves(database_url: str) -> None:
    command = [sys.executable, "-c", SERVER, database_url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "serving\n"
            expected = (
                rf"{os.uname().nodename}, process {first.pid}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
            )
            with pytest.raises(LaunchError, match=expected) as error, serving(database_url):
                pass
            assert error.value.exit_code == 75
            with accounts(database_url, "root") as users:
                users.add("ann", UserRole.OPERATOR, "hash")  # beside it
        finally:
            first.send_signal(signal.SIGKILL)
    with serving(database_url) as database:  # nothing is left to clear away
        assert [user.name for user in database.users.all()] == ["ann"]


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as error, serving("postgresql://ann:secret@127.0.0.1:9/x"):
        pass
    assert "secret" not in f"{error.value} {error.value.hint}"
    assert "127.0.0.1:9" in str(error.value)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:", "sqlite:///a\0b"]
)
def test_what_is_no_database(url: str) -> None:
    with pytest.raises(InputError) as error:
        read_url(url)
    assert "sqlite:///" in error.value.hint


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "procguard.db").write_text("a diary\n" * 200)
    with pytest.raises(LaunchError, match="is not a database"), serving(f"sqlite:///{tmp_path}/procguard.db"):
        pass
    assert (tmp_path / "procguard.db").read_text().startswith("a diary")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="file"), serving(f"sqlite:///{tmp_path}/file/procguard.db"):
        pass


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refused)
    said = r"procguard\.db\.lock cannot be locked: Function not implemented"
    with pytest.raises(DatabaseError, match=said), serving(f"sqlite:///{tmp_path / 'procguard.db'}"):
        pass


def test_the_database_is_for_its_owner_only(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/data/procguard.db") as database:
        Control(database.store, log_size=lambda *_: 0, heartbeat_s=2).record("ann", "look", "g", quoted(""))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()}
    assert set(modes) == {"procguard.db", "procguard.db-wal", "procguard.db-shm", "procguard.db.lock"}
    assert set(modes.values()) == {0o600}, modes


def test_users(database_url: str) -> None:
    with serving(database_url):
        pass
    with accounts(database_url, "root") as users:
        users.add("ann", UserRole.VIEWER, "$argon2id$one")
        first = users.find("ann")
        assert first is not None
        assert (first.role, first.password_hash) == (UserRole.VIEWER, "$argon2id$one")
        with pytest.raises(RequestRefused, match="already"):
            users.add("ann", UserRole.OPERATOR, "x")
        users.set_password("ann", "$argon2id$two")
        users.set_role("ann", UserRole.OPERATOR)
        second = users.find("ann")
        assert second is not None
        assert (second.role, second.password_hash, second.epoch) == (
            UserRole.OPERATOR,
            "$argon2id$two",
            first.epoch + 2,
        )
        users.remove("ann")
        for ask in (users.remove, lambda name: users.set_role(name, UserRole.VIEWER)):
            with pytest.raises(NotFound):
                ask("ann")
        assert users.find("ann") is users.find("nul\0") is None
        users.add("ann", UserRole.VIEWER, "x")
        third = users.find("ann")
        assert third is not None
        assert third.epoch > second.epoch, "a session of the one who had the name before stays ended"
    with serving(database_url) as database:
        events = [
            (event.who, event.action, event.detail) for event in database.store.events(None, 9, EventFilter())
        ]
    assert events == [
        ("root", "user-added", "viewer"),
        ("root", "user-removed", ""),
        ("root", "user-role", "operator"),
        ("root", "user-password", ""),
        ("root", "user-added", "viewer"),
    ]


def test_whatever_was_written_is_read_back(database_url: str) -> None:
    odd = "tab\t newline\n quote' 中文 \u2028 \U0001f600 <script>\x1b[31m"
    with serving(database_url) as database:
        cluster = Cluster(database.store)
        cluster.join("gn6", workers=2, addresses=("10.0.0.6",), command=("run", odd), allowed=(odd,))
        settings = GroupSettings(master_addr="10.0.0.6", backoff_s=0.1, max_restarts=3, world_size=1)
        cluster.control.create_group(NewGroup(name="g", settings=settings), "ann")
        cluster.control.move(["gn6-1", "gn6-0"], "g", "ann")
        cluster.control.start("g", "ann")
        cluster.control.record("ann" * 100, odd, odd * 50, quoted("nul\0" + odd))
        before = cluster.control._ledger
        cluster.kill_and_start()
        assert cluster.control._ledger.world == before.world
        assert cluster.control.queries.node("gn6").limited_to == [odd]
        run = cluster.control._ledger.world.groups["g"].run
        assert run is not None
        assert run.commands == {"gn6": ("run", odd)}
        last, *older = cluster.control.queries.events(limit=3)
        assert (last.detail, last.values) == ("nul\0" + odd, {"text": "nul\0" + odd})
        assert last.at.utcoffset() is not None
        assert cluster.control.queries.events(before=last.id, limit=2) == older
        assert cluster.control.queries.events(before=2**80, limit=10**9)[0] == last
        assert cluster.control.queries.events(before=-5) == []
