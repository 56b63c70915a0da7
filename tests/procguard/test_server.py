"""``procguard server`` as a process: its first start, its refusals, its end."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import httpx
import pytest

from platform_launch.cli.procguard import main
from platform_launch.procguard.database import serving
from tests.lab.needs import takes_long
from tests.lab.postgres import postgres, requires_postgres
from tests.lab.waiting import LIMIT_S, until
from tests.procguard.server_process import server
from tests.procguard.serving import served

Program = Callable[..., tuple[int, str, str]]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def password(data: Path) -> str:
    return (data / "initial-password").read_text().strip()


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Iterator[Program]:
    """Run ``procguard`` in this process, for what ends at once: exit code, standard output and error."""
    mask, limits = os.umask(0o022), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.umask(mask)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    yield run
    os.umask(mask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_logs_beyond_the_limit_go_and_the_newest_stay(tmp_path: Path) -> None:
    old, new = (tmp_path / "data" / "logs" / "gone" / "0" / run for run in "12")
    for age, run in enumerate((new, old)):
        run.mkdir(parents=True)
        (run / f"{0:016d}-{0:012d}.log").write_bytes(b"x" * 6 * 2**20)
        os.utime(run / f"{0:016d}-{0:012d}.log", (1e9 - age, 1e9 - age))
    with served(tmp_path / "data", logs_limit_gib=0.01):
        until(lambda: not old.exists())
        assert new.exists()


def test_a_first_start_makes_what_is_missing_tells_no_secret_and_refuses_a_second_server(
    tmp_path: Path, program: Program
) -> None:
    data = tmp_path / "data"
    with server(data) as running:
        token = (data / "join-token").read_text().strip()
        assert token not in running.said
        assert password(data) not in running.said
        assert f"--token-file {data / 'join-token'}" in running.said
        assert {mode(data / name) for name in ("join-token", "initial-password", "session-secret")} == {0o600}
        assert mode(data / "procguard.db") == 0o600
        admin = running.login("admin", password(data))
        assert admin.get("/api/v1/me").json() == {"name": "admin", "role": "admin"}

        (tmp_path / "new").write_text("a password of my own\n")
        place = ("--data", str(data))
        new = ("--password-file", str(tmp_path / "new"), *place)
        assert program("user", "passwd", "admin", *new)[0] == 0
        assert not (data / "initial-password").exists()
        assert admin.get("/api/v1/me").status_code == 401
        running.login("admin", "a password of my own")

        made = running.login("admin", "a password of my own").post("/api/v1/groups", json={"name": "t"})
        assert made.is_success
        until(lambda: "INFO procguard.events: admin: create t" in running.said)

        assert program("user", "add", "eve", *new)[0] == 0
        eve = running.login("eve", "a password of my own")
        assert eve.get("/api/v1/me").json() == {"name": "eve", "role": "viewer"}
        assert program("user", "add", "eve", *new)[0] == 64
        assert program("user", "add", "no/name", *new)[0] == 64
        assert program("user", "role", "eve", "operator", *place)[0] == 0
        assert "operator" in program("user", "list", *place)[1].partition("eve")[2]
        assert program("user", "remove", "eve", *place)[0] == 0
        assert program("user", "remove", "eve", *place)[0] == 64
        (tmp_path / "new").write_text("short")
        assert program("user", "add", "bob", *new)[0] == 66
        code, _, said = program("server", "--listen", "127.0.0.1:0", "--data", str(data))
        assert (code, f"process {running.process.pid}" in said) == (75, True), said
        assert running.login("admin", "a password of my own").get("/readyz").status_code == 200


def test_users_are_those_of_a_server_that_is_there(tmp_path: Path, program: Program) -> None:
    (tmp_path / "new").write_text("a password of my own\n")
    elsewhere = ("--data", str(tmp_path / "elsewhere"))
    for words in (("add", "eve", "--password-file", str(tmp_path / "new")), ("list",)):
        code, *said = program("user", *words, *elsewhere)
        assert code == 66
        assert f"no server's database at {tmp_path}/elsewhere/procguard.db" in "".join(said)
    assert not (tmp_path / "elsewhere").exists()


def test_sigterm_ends_it_in_good_order_though_a_page_is_open(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        people = running.login("admin", password(tmp_path))
        opened, closed = threading.Event(), threading.Event()

        def watch() -> None:
            with people.stream("GET", "/stream") as stream:
                for _ in stream.iter_raw():
                    opened.set()
            closed.set()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        assert opened.wait(LIMIT_S)
        assert running.end() == 0
        assert closed.wait(LIMIT_S)  # the stream was ended, not broken
        assert "Traceback" not in running.said
        assert "the server has stopped" in running.said


def test_after_kill_9_everything_is_there_again(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        people = running.login("admin", password(tmp_path))
        assert people.post("/api/v1/groups", json={"name": "kept"}).status_code == 201
        join_token = (tmp_path / "join-token").read_text()
        running.end(signal.SIGKILL)
    with server(tmp_path) as again:
        assert "log in as admin" not in again.said
        assert (tmp_path / "join-token").read_text() == join_token
        token = {"Authorization": people.headers["Authorization"]}  # the session goes on as well
        with httpx.Client(base_url=again.url, headers=token, trust_env=False, timeout=LIMIT_S) as same:
            assert [group["name"] for group in same.get("/api/v1/groups").json()] == ["kept"]
            assert same.get("/api/v1/events").json()[0]["who"] == "admin"


@requires_postgres
def test_a_server_ends_when_another_has_taken_its_database(tmp_path: Path) -> None:
    with postgres() as database, server(tmp_path, "--database", url := database.new_database()) as running:
        running.process.send_signal(signal.SIGSTOP)  # it must not be the faster one
        database.stop()
        database.start()
        with serving(url):
            running.process.send_signal(signal.SIGCONT)
            assert running.process.wait(LIMIT_S) == 75
    until(lambda: "another server has served the database" in running.said)


def test_a_database_that_somebody_holds_is_said_so(tmp_path: Path, program: Program) -> None:
    with serving(f"sqlite:///{tmp_path}/procguard.db"):
        pass
    holder = sqlite3.connect(tmp_path / "procguard.db", isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        code, _, said = program("server", "--listen", "127.0.0.1:0", "--data", str(tmp_path))
    finally:
        holder.close()
    assert (code, "database is locked" in said) == (75, True), said
    assert "Traceback" not in said


def test_others_can_reach_it_only_with_a_join_token(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "some.host:0"):
        code, _, said = program("server", "--listen", address, "--data", str(tmp_path))
        assert (code, "no join token is set" in said) == (66, True), said
    assert not any(tmp_path.iterdir())
    monkeypatch.setenv("PROCGUARD_JOIN_TOKEN", "short")
    assert program("server", "--data", str(tmp_path))[0] == 66
    variables = {"PROCGUARD_JOIN_TOKEN": "a token of some length"}
    with server(tmp_path, "--listen", "0.0.0.0:0", env=variables) as running:
        assert f"http://{socket.gethostname()}:" in running.said
        assert "are sent unencrypted" in running.said
        assert "a token of some length" not in running.said
        assert not (tmp_path / "join-token").exists()


@pytest.mark.parametrize(
    ("flags", "config", "code", "words"),
    [
        (["--listen", "nowhere"], "", 64, "--listen 'nowhere': expected HOST:PORT"),
        (["--listen", "192.0.2.1:1"], "join_token_file: token", 64, "cannot listen on 192.0.2.1:1"),
        (["--listen", "a..b:1"], "join_token_file: token", 64, "listen=a..b:1: not a host name"),
        ([], "listen: 127.0.0.1:{taken}", 64, "Address already in use"),
        ([], "liste: x", 66, "'liste' is not a key"),
        ([], "tls_certificate: none.pem\ntls_key: none.pem", 66, "tls_certificate=none.pem"),
        ([], "join_token_file: none", 66, "join_token_file=none"),
        (["--database", "mysql://x/y"], "", 66, "mysql"),
        (["--config", "none.yaml"], None, 66, "none.yaml cannot be read"),
    ],
)
def test_what_cannot_be_used_is_said_in_two_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Program,
    flags: list[str],
    config: str | None,
    code: int,
    words: str,
) -> None:
    (tmp_path / "token").write_text("a token of some length")
    (tmp_path / "token").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if config is not None:
            text = config.replace("{taken}", str(taken.getsockname()[1]))
            (tmp_path / "config.yaml").write_text(text)
            flags = [*flags, "--config", str(tmp_path / "config.yaml")]
        monkeypatch.chdir(tmp_path)
        ended, _, said = program("server", "--data", "data", *flags)
    assert (ended, words in said) == (code, True), said
    lines = [line for line in said.splitlines() if "[INFO]" not in line]
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2


@takes_long
def test_few_open_files_are_said(tmp_path: Path) -> None:
    serve = [sys.executable, "-m", "platform_launch", "procguard", "server", "--listen", "127.0.0.1:0"]
    limited = ["sh", "-c", 'ulimit -n 600 && exec "$@"', "sh", *serve, "--data", str(tmp_path)]
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("at most 600 files" in line for line in islice(process.stderr, 10))
        finally:
            process.kill()


@takes_long
def test_tls_by_files(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
        ],
        check=True,
        capture_output=True,
    )
    config = tmp_path / "config.yaml"
    config.write_text(f"tls_certificate: {certificate}\ntls_key: {key}\n")
    data = tmp_path / "data"
    with server(data, "--config", str(config)) as running:
        assert running.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=running.url, verify=trusted, trust_env=False, timeout=LIMIT_S) as people:
            answer = people.post("/api/v1/login", json={"name": "admin", "password": password(data)})
            assert answer.status_code == 200
            assert all("secure" in line.lower() for line in answer.headers.get_list("set-cookie"))
        running.process.send_signal(signal.SIGINT)
        until(lambda: running.process.poll() is not None)
        assert running.process.returncode == 0
