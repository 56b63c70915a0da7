"""``procguard ctl`` against a real server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platform_launch.cli.procguard import main
from platform_launch.procguard.api.shapes.groups import GroupPhase, GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.people import UserRole
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S, until
from tests.procguard.serving import PASSWORD, FakeAgent, Served, hashed_password, served

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("ctl")) as found:
        yield found


@pytest.fixture
def ctl(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ctl:
    """Run ``procguard ctl`` as an operator: exit code, standard output and error."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PROCGUARD_SERVER", server.url)
    monkeypatch.setenv("PROCGUARD_TOKEN", server.token("op"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(("ctl", *arguments))
        return (code, *capsys.readouterr())

    return run


def test_a_login_is_kept_for_its_server_and_forgotten(
    ctl: Ctl, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROCGUARD_TOKEN")
    monkeypatch.delenv("PROCGUARD_SERVER")
    code, _, said = ctl("groups")
    assert (code, "no server: expected" in said) == (64, True)
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    login = ("login", "--server", server.url + "/", "--name", "viewer", "--password-file", str(password))
    code, _, said = ctl(*login)
    assert (code, "viewer (viewer)" in said) == (0, True), said
    kept = tmp_path / "config" / "procguard" / "tokens.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert ctl("groups")[0] == 0
    code, _, said = ctl("create", "x")
    assert (code, "viewer may view but not change" in said) == (64, True)
    # A token is shown to nobody but the server that gave it.
    code, _, said = ctl("groups", "--server", server.url.replace("127.0.0.1", "localhost"))
    assert (code, "ctl login" in said) == (64, True)
    token = json.loads(kept.read_text())[server.url]
    assert ctl("logout")[0] == 0
    assert json.loads(kept.read_text()) == {}
    monkeypatch.setenv("PROCGUARD_TOKEN", token)
    assert ctl("groups", "--server", server.url)[0] == 64
    password.write_text("wrong")
    code, _, said = ctl(*login)
    assert (code, "wrong user name or password" in said) == (64, True)


def test_logging_out_ends_the_login_that_is_kept_and_not_the_token_of_a_script(
    ctl: Ctl, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    assert ctl("login", "--name", "op", "--password-file", str(password))[0] == 0
    kept = json.loads((tmp_path / "config/procguard/tokens.json").read_text())[server.url]
    with server.person("op") as op:
        script = op.post("/api/v1/me/tokens", json={"label": "nightly"}).json()["token"]
    monkeypatch.setenv("PROCGUARD_TOKEN", script)
    assert ctl("logout")[0] == 0
    assert server.client(kept).get("/api/v1/me").status_code == 401
    assert server.client(script).get("/api/v1/me").status_code == 200
    code, _, said = ctl("logout")
    assert (code, "an API token may not do this" in said) == (64, True), said


def test_a_group_from_a_terminal(ctl: Ctl, server: Served) -> None:
    node = FakeAgent(server, "gn6", 2)
    assert ctl("create", "t", "--master-addr", "gn6", "--backend", "gloo", "--world-size", "2")[0] == 0
    assert ctl("create", "t")[0] == 64
    assert ctl("set", "t", "--command", "python train.py", "--world-size", "all")[0] == 0
    settings = json.loads(ctl("groups", "t", "--format", "json")[1])["settings"]
    assert (settings["command"], settings["world_size"]) == ("python train.py", None)
    assert (settings["backend"], settings["master_addr"]) == ("gloo", "gn6")
    assert ctl("set", "t")[0] == 64
    assert ctl("set", "t", "--world-size", "many")[0] == 64
    code, _, said = ctl("set", "t", "--fail-after", "1e99", "--world-size", "0")
    assert (code, "error: --world-size: " in said, "; --fail-after: " in said) == (64, True, True)
    assert "error: --env: " in ctl("create", "u", "--env", "RANK=1")[2]

    assert ctl("set", "t", "--master-addr", "")[0] == 0
    code, _, said = ctl("start", "t")
    assert (code, said.count("no workers"), said.count("no Master address")) == (64, 1, 1)
    assert ctl("set", "t", "--master-addr", "gn6")[0] == 0
    assert ctl("move", "gn6-0", "gn6-1")[0] == 64
    assert ctl("move", "gn6-0", "gn6-1", "--group", "t")[0] == 0
    table = ctl("ranks", "t")[1]
    assert table == table.rstrip("\n") + "\n"
    assert [line.split()[:2] for line in table.splitlines()[1:3]] == [["gn6-0", "0"], ["gn6-1", "1"]]
    assert "t: start requested" in ctl("start", "t")[2]
    assert "no change" in ctl("start", "t")[2]
    until(lambda: node.beat() and "running" in ctl("groups", "t")[1])
    node.end(1, 3)
    node.reports[1]["verdict"] = "cause: the data loader ran out of shared memory\nfix: a larger /dev/shm"
    until(lambda: node.beat() and "failed" in ctl("groups", "t")[1])
    shown = ctl("groups", "t")[1]
    assert "gn6-1" in shown
    until(lambda: node.beat() and "out of shared memory" in ctl("runs", "t")[1])
    assert "out of shared memory" in ctl("runs", "t", "1")[1]
    assert "/dev/shm" not in ctl("groups")[1] + ctl("runs", "t")[1], "a verdict is one line in a table"
    assert ctl("groups", "t")[1].splitlines()[-1].strip() == "fix: a larger /dev/shm"
    assert json.loads(ctl("owners", "t", "op", "--format", "json")[1]) == ["op"]
    assert ctl("owners", "t")[1] == "op\n"
    assert ctl("owners", "t", "--everyone")[1] == "every operator\n"
    assert "gn6" in ctl("nodes", "--state", "free")[1]
    assert ctl("drain", "gn6")[0] == 0
    assert "drained" in ctl("nodes")[1]
    assert ctl("drain", "gn6", "--end")[0] == 0
    assert json.loads(ctl("groups", "--state", "failed", "--format", "json")[1])[0]["name"] == "t"
    assert json.loads(ctl("groups", "--state", "running", "--format", "json")[1]) == []
    assert [one["name"] for one in json.loads(ctl("groups", "--mine", "--format", "json")[1])] == ["t"]
    assert ctl("users")[0] == 64, "only an admin sees them"
    assert ctl("tokens")[0] == 0
    assert "op" in ctl("events")[1]
    listed = json.loads(ctl("workers", "--group", "t", "--format", "json")[1])
    assert [worker["worker"] for worker in listed] == ["gn6-0", "gn6-1"]
    assert "gn6-0" in ctl("workers")[1]
    assert ctl("move", "gn6-0", "gn6-1", "--out")[0] == 0
    assert ctl("delete", "t")[0] == 0
    assert ctl("groups", "t")[0] == 64
    assert ctl("forget", "gn6")[0] == 64  # it is alive


def test_a_rank_that_leaves_before_its_agent_hears_of_the_stop_is_stopped(ctl: Ctl, server: Served) -> None:
    node = FakeAgent(server, "gn8", 2)
    assert ctl("create", "early", "--master-addr", "gn8", "--command", "python train.py")[0] == 0
    assert ctl("move", "gn8-0", "gn8-1", "--group", "early")[0] == 0
    assert ctl("start", "early")[2].endswith("early: start requested (run 1)\n")
    until(lambda: node.beat() and "running" in ctl("groups", "early")[1])
    assert ctl("stop", "early")[2].endswith("early: stop requested (run 1)\n")
    node.end(0, 1)
    node.end(1, 143)
    until(
        lambda: (
            node.beat() and json.loads(ctl("groups", "early", "--format", "json")[1])["phase"] == "stopped"
        )
    )
    ends = {line.split()[0]: line.split()[2:4] for line in ctl("workers", "--group", "early")[1].splitlines()}
    assert (ends["gn8-0"], ends["gn8-1"]) == (["stopped", "1"], ["stopped", "143"])
    assert [run["outcome"] for run in json.loads(ctl("runs", "early", "--format", "json")[1])] == ["stopped"]
    page = server.person().get("/workers/gn8-1/log").text
    assert ("Stopped" in page, "Failed" in page) == (True, False)


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 0), (3, 1)])
def test_a_script_waits_for_the_end_of_a_run(
    ctl: Ctl, server: Served, monkeypatch: pytest.MonkeyPatch, exit_code: int, expected: int
) -> None:
    monkeypatch.setattr("platform_launch.cli.procguard.ctl.changing._AGAIN_S", 0.05)
    node, name = FakeAgent(server, f"wait{exit_code}"), f"waits{exit_code}"
    wanted = ("--command", "train", "--queue-workers", "1", "--queue-nodes", f"wait{exit_code}")
    assert ctl("create", name, *wanted)[0] == 0
    done = threading.Event()

    def obey() -> None:
        while not done.is_set():
            node.beat()
            if node.reports[0]["state"] == "running":
                node.end(0, exit_code)
            done.wait(0.05)

    agent = threading.Thread(target=obey)
    agent.start()
    try:
        code, _, said = ctl("start", name, "--when-free", "--wait")
    finally:
        done.set()
        agent.join()
    assert (code, f"{name}: {'failed' if exit_code else 'finished'}" in said) == (expected, True), said


def test_the_logs_of_a_group_are_read_as_one(ctl: Ctl, server: Served) -> None:
    agent, control = FakeAgent(server, "both", 2), server.parts.control
    settings = GroupSettings(master_addr="both")
    control.create_group(NewGroup(name="both", settings=settings), "op")
    control.move(["both-0", "both-1"], "both", "op")
    generation = control.start("both", "op").group.generation
    for number in (0, 1):
        server.parts.logs.append(f"both-{number}", generation, 0, b"step\nValueError: bad\n")
    control.stop("both", "op")
    until(lambda: agent.beat() and control.queries.group("both").phase is GroupPhase.STOPPED)
    shown = ctl("logs", "--group", "both")[1].splitlines()
    assert sorted(line.partition("[")[2] for line in shown) == [
        "0 both-0] ValueError: bad",
        "0 both-0] step",
        "1 both-1] ValueError: bad",
        "1 both-1] step",
    ]
    assert len(ctl("logs", "--group", "both", "--errors")[1].splitlines()) == 2
    assert ctl("logs", "both-0", "--errors")[1] == "2: ValueError: bad\n"
    assert ctl("logs")[0] == ctl("logs", "both-0", "--group", "both")[0] == 64


def test_help_shows_only_limits_that_there_are(ctl: Ctl) -> None:
    assert "None]" not in ctl("set", "--help")[1]


def test_an_unknown_command_is_told_where_commands_are_listed(ctl: Ctl) -> None:
    code, _, said = ctl("nodez")
    assert (code, "procguard ctl --help" in said) == (64, True), said


def test_logs_on_a_terminal_command_it_nothing(
    ctl: Ctl, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeAgent(server, "talk")
    lines = "".join(f"step {n}\n" for n in range(300)) + "\x1b]0;owned\x07\x1b[2J红\n"
    server.parts.logs.append("talk-0", 1, 0, lines.encode())
    assert ctl("logs", "talk-0", "--tail", "3")[1] == "step 298\nstep 299\n\x1b]0;owned\x07\x1b[2J红\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = ctl("logs", "talk-0")[1]
    assert "\x1b" not in shown
    assert "红" in shown
    assert "101: step 100\n" in ctl("logs", "talk-0", "--search", "STEP 100")[1]
    assert ctl("logs", "nobody-0")[0] == 64


def test_following_a_log_goes_on_into_the_next_run(
    ctl: Ctl, server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform_launch.cli.procguard.ctl.logs._AGAIN_S", 0.02)
    FakeAgent(server, "live")
    logs, seen, turns = server.parts.logs, [], [0]
    logs.append("live-0", 1, 0, b"first\n")

    def write(text: str) -> None:
        seen.append(text)
        turns[0] += 1
        if text == "first\n":
            logs.append("live-0", 1, 6, b"sec")
            threading.Timer(
                0.1, logs.append, ("live-0", 1, 9, b"ond\n")
            ).start()  # a line is printed when it is whole
        elif text == "second\n":
            logs.append("live-0", 2, 0, b"new run\n")
        elif text == "new run\n":
            raise KeyboardInterrupt
        assert turns[0] < 2000, "followed in vain"

    monkeypatch.setattr("platform_launch.cli.procguard.ctl.logs._write", write)
    code, _, said = ctl("logs", "-f", "live-0")
    assert code == 130
    assert "".join(seen) == "first\nsecond\nnew run\n"
    assert "-- generation 2 --" in said  # of no group's run


def test_a_log_is_named_by_its_groups_run(ctl: Ctl, server: Served) -> None:
    agent, control = FakeAgent(server, "named"), server.parts.control
    for group in ("before", "now"):
        settings = GroupSettings(master_addr="named")
        control.create_group(NewGroup(name=group, settings=settings), "op")
        control.move(["named-0"], group, "op")
        generation = control.start(group, "op").group.generation
        server.parts.logs.append("named-0", generation, 0, f"log of {group}\n".encode())
        control.stop(group, "op")

        def stopped(name: str = group) -> bool:
            agent.beat()
            return control.queries.group(name).phase is GroupPhase.STOPPED

        until(stopped)
    assert generation == 2
    assert ctl("logs", "named-0", "--run", "1")[1] == "log of now\n"
    code, _, said = ctl("logs", "named-0", "--run", "2")
    assert (code, "runs with logs: 1" in said) == (64, True)
    code, shown, _ = ctl("runs", "now")
    assert (code, "op" in shown) == (0, True)


def test_a_server_that_is_not_there_or_is_another(ctl: Ctl, tmp_path: Path) -> None:
    with reserved_port() as port:
        code, _, said = ctl("groups", "--server", f"http://127.0.0.1:{port}")
    assert (code, "does not answer" in said, len(said.splitlines())) == (75, True, 2)
    for wrong in ("gn6:8765", "ftp://x", "http://", "http://[::1"):
        assert ctl("groups", "--server", wrong)[0] in (64, 75), wrong

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n<html></html"
            )

    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=answer, args=(other,))
        thread.start()
        code, _, said = ctl("groups", "--server", f"http://127.0.0.1:{other.getsockname()[1]}")
        thread.join(LIMIT_S)
    assert (code, "address of a ProcGuard server" in said) == (64, True), said


def test_what_ctl_refuses_it_says_in_words_with_the_command_that_helps(ctl: Ctl) -> None:
    code, _, said = ctl("create", "a b")
    assert (code, "--name" in said) == (64, False)
    assert "name: expected 1 to 64 letters, digits" in said
    assert "procguard ctl groups" in ctl("start", "nowhere")[2]
    assert "procguard ctl workers" in ctl("move", "nobody-0", "--out")[2]
    assert ctl("create", "bare")[0] == 0
    said = ctl("start", "bare")[2]
    assert "procguard ctl move WORKER… --group bare" in said
    assert "procguard ctl set bare --master-addr NODE" in said
    assert "procguard ctl move WORKER… --group bare" in ctl("ranks", "bare")[1]
    assert "procguard ctl runs bare" in ctl("runs", "bare", "7")[2]
    assert ctl("delete", "bare")[0] == 0


def test_users_and_tokens_are_managed_from_a_terminal(
    ctl: Ctl, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = server.parts.accounts
    accounts.add("boss", UserRole.ADMIN, hashed_password())
    monkeypatch.setenv("PROCGUARD_TOKEN", server.token("boss"))
    password, token = tmp_path / "password", tmp_path / "token"
    password.write_text("long enough\n")
    new = ("--role", "viewer", "--password-file", str(password))
    code, out, _ = ctl("users", "--add", "new.one", *new)
    assert (code, "new.one" in out) == (0, True)
    assert ctl("users", "--change", "new.one", "--role", "operator")[0] == 0
    assert (account := accounts.find("new.one"))
    assert account.role is UserRole.OPERATOR
    assert ctl("users", "--add", "half")[0] == 64
    code, out, _ = ctl("users", "--remove", "new.one")
    assert (code, "new.one" in out) == (0, False)

    code, out, _ = ctl("tokens", "--add", "nightly", "--role", "operator")
    token.write_text(out)
    monkeypatch.delenv("PROCGUARD_TOKEN")
    code, _, said = ctl("login", "--token-file", str(token))
    assert (code, "boss (operator)" in said) == (0, True), said
    assert ctl("groups")[0] == 0
    assert ctl("tokens", "--add", "more")[0] == 64, "a token makes no tokens"
    made = json.loads(ctl("tokens", "--format", "json")[1])
    assert ctl("tokens", "--end", made[0]["id"])[0] in (0, 64)
    assert ctl("groups")[0] == 64, "it has ended"


def test_settings_are_taken_back_by_name(ctl: Ctl) -> None:
    wanted = ("--queue-workers", "3", "--queue-nodes", "h100", "--hold-until", "2030-01-01T00:00Z")
    assert ctl("create", "asked", *wanted, "--link", "https://wandb.ai/x", "--idle-stop")[0] == 0
    settings = json.loads(ctl("groups", "asked", "--format", "json")[1])["settings"]
    assert (settings["queue_workers"], settings["idle_stop"], settings["links"]) == (
        3,
        True,
        ["https://wandb.ai/x"],
    )
    assert ctl("set", "asked", "--queue-workers", "0", "--hold-until", "never", "--no-idle-stop")[0] == 0
    settings = json.loads(ctl("groups", "asked", "--format", "json")[1])["settings"]
    assert (settings["queue_workers"], settings["idle_stop"], settings["hold_until"]) == (None, False, None)
    _, out, _ = ctl("events", "--of", "asked", "--who", "op", "--action", "settings")
    assert len(out.splitlines()) == 2
