"""``platform-launch inspect`` beside real control sockets, whose launches say what a test wants."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from platform_launch.cli import main
from platform_launch.cli.inspect import chosen_launch
from platform_launch.launch.hang_watch import with_phrases
from platform_launch.observe import control
from platform_launch.observe.control import ControlSocket
from platform_launch.observe.memory import MemoryHeld, memory_lines
from platform_launch.observe.words import english
from platform_launch.sentences import sentence
from platform_launch.text import Phrase
from tests.lab.waiting import LIMIT_S


@contextmanager
def launches(temporary: Path, *answers: dict[str, object]) -> Iterator[None]:
    with ExitStack() as stack:
        for number, answer in enumerate(answers):
            folder = temporary / f"platform_launch_{os.geteuid()}" / f"observe{number}"
            folder.mkdir(parents=True)
            listening = ControlSocket(folder, lambda _request, answer=answer: answer)  # type: ignore[misc]
            stack.callback(listening.stop)
            listening.start()
        yield


def answer(host: str, *pids: int, log: str) -> dict[str, object]:
    ranks = [{"rank": rank, "state": {"pid": pid}} for rank, pid in enumerate(pids)]
    return {
        "still_s": 38.0,
        "log": log,
        "finding_lines": [f"rank 1 waits on {host}"],
        "lines": [f"ranks 0 and 1 on {host}"],
        "nodes": [{"host": host, "ranks": ranks}],
    }


def test_each_job_is_shown_once_however_many_of_its_nodes_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = answer("gn6", 1, 2, log="a.log")
    with launches(tmp_path, ours, ours | {"log": "b.log"}, answer("gn6", 3, 4, log="c.log")):
        assert main(["inspect"]) == 0
        shown = capsys.readouterr().out.split("\n\n")
        assert [job.count("2 ranks on 1 node; last progress 38 s ago") for job in shown] == [1, 1]
        assert "c.log" in shown[1]
        assert "rank 1 waits on gn6" in shown[1]
        assert main(["inspect", "--format", "json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == 2


def test_a_job_is_asked_for_by_its_name_and_json_has_no_inner_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = answer("gn6", 1, 2, log="/logs/train_one_node0_20261129-041515.log")
    other = answer("gn6", 3, 4, log="/logs/train_other_node0_20261129-041515.log")
    inner = {"finding_line_sentences": [{}], "cost_phrases": [], "finding": {"kind": "x", "sentences": [{}]}}
    with launches(tmp_path, one, other | inner):
        assert main(["inspect", "other"]) == 0
        assert capsys.readouterr().out.startswith("job other: 2 ranks on 1 node; last progress 38 s ago")
        assert main(["inspect", "other", "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["job"] == "other"
        parts = {"job", "pid", "uid", "still_s", "log", "finding", "finding_lines", "lines", "nodes"}
        assert set(document) == parts
        assert document["finding"] == {"kind": "x"}
        assert main(["inspect", "third"]) == 66
        assert capsys.readouterr().err.splitlines()[:3] == [
            "error: no job 'third' runs on this machine, but these:",
            f"       job one, pid {os.getpid()}, log {one['log']}",
            f"       job other, pid {os.getpid()}, log {other['log']}",
        ]


@contextmanager
def seen_as(monkeypatch: pytest.MonkeyPatch, uids: dict[str, int]) -> Iterator[None]:
    """Let each launch, found by its log, have the pid 1000 plus its number and a user of its own."""
    ask = control.ask

    def asked(path: Path, **request: object) -> dict[str, object] | None:
        found = ask(path, **request)  # type: ignore[arg-type]
        assert found is not None
        log = str(found["log"])
        return found | {"pid": 1000 + list(uids).index(log), "uid": uids[log]}

    with monkeypatch.context() as patch:
        patch.setattr(control, "ask", asked)
        yield


def test_jobs_of_one_name_are_told_apart_by_pid_or_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    logs = [tmp_path / f"train_job_node0_20261129-04151{number}.log" for number in (5, 6)]
    for log in logs:
        log.touch()
    users = {str(log): os.geteuid() for log in logs}
    both = [answer("gn6", 2 * number, log=str(log)) for number, log in enumerate(logs)]
    with launches(tmp_path, *both), seen_as(monkeypatch, users):
        for command in (["profile"], ["profile", "job"], ["debug", "--rank", "0", "job"]):
            assert main(command) == 66
            assert capsys.readouterr().err.splitlines() == [
                "error: several jobs run on this machine:",
                f"       job job, pid 1000, log {logs[0]}",
                f"       job job, pid 1001, log {logs[1]}",
                "hint:  add the pid of one of them, its name or its log",
            ]
        monkeypatch.chdir(tmp_path)
        for name in ("1001", str(logs[1]), logs[1].name):
            assert chosen_launch(name)[1]["log"] == str(logs[1])
            assert main(["inspect", name]) == 0
            shown = capsys.readouterr().out
            assert (str(logs[1]) in shown, str(logs[0]) in shown) == (True, False)


def test_a_node_of_a_job_is_found_by_each_of_its_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    users = {"a.log": os.geteuid(), "b.log": os.geteuid()}
    with launches(tmp_path, *(answer("gn6", 1, log=log) for log in users)), seen_as(monkeypatch, users):
        assert [chosen_launch(pid)[1]["log"] for pid in ("1000", "1001", None)] == ["a.log", "b.log", "a.log"]


def test_another_user_s_job_is_taken_only_if_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = 4_000_000_000  # no user has this number
    users = {"/b/train_job_node0_20261129-041515.log": other}
    with launches(tmp_path, *(answer("gn6", 1, log=log) for log in users)), seen_as(monkeypatch, users):
        for command in (["profile"], ["debug", "--rank", "0"]):
            assert main(command) == 66
            assert capsys.readouterr().err.splitlines()[:2] == [
                "error: no job of this user runs on this machine, but these:",
                f"       job job, pid 1000, user {other}, log {next(iter(users))}",
            ]
        assert [chosen_launch(name)[1]["uid"] for name in ("job", "1000")] == [other, other]


def test_this_user_s_job_comes_before_another_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own, other = (f"/{user}/train_job_node0_20261129-041515.log" for user in "ab")
    users = {other: os.geteuid() + 1, own: os.geteuid()}
    with launches(tmp_path, *(answer("gn6", 1, log=log) for log in users)), seen_as(monkeypatch, users):
        found = [chosen_launch(name)[1]["log"] for name in (None, "job", "1000")]
        assert found == [own, own, other]


def test_what_ranks_do_is_shown_in_chinese_where_the_launch_tells_what_its_lines_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PLATFORM_LAUNCH_LANG", "zh")
    ours = answer("gn6", 1, 2, log="a.log")
    line = sentence("node-silent", node=3, name="gn9")
    told = {"lines": [english(line)], "line_sentences": [line.document()]}
    held = memory_lines(
        [(Phrase("node {rank} ({place})", rank=0, place="gn6"), MemoryHeld(2.0, {0: 3, 1: 3}))]
    )
    cost = Phrase("so far: {summary}", summary=Phrase("{time} training", time="1 s"))
    also = {"memory_lines": held, "cost_line": cost, "health_lines": ["an older launch's"]}
    with launches(tmp_path, ours | told | with_phrases(also)):
        assert main(["inspect"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "2 个 rank，1 个节点；上一次进展在 38 秒前；日志 a.log",
        "rank 1 waits on gn6",
        "节点 3（gn9）没有应答",
        "内存峰值，节点 0（gn6）：进程 2.0 GiB；GPU 0、1 各 3.0 GiB",
        "到目前为止：训练 1 s",
        "an older launch's",
    ]


def test_what_another_user_s_launch_answers_root_steers_no_terminal_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    hostile = answer("gn6", 1, log="a\n.log") | {
        "lines": ["\x1b]0;title\x07 ranks"],
        "health_lines": ["a\x9b"],
    }
    others: list[dict[str, object]] = [{"nodes": [3]}, {"nodes": [{"host": 1}]}, {"nodes": [{"ranks": 3}]}]
    with launches(tmp_path, hostile, *others):
        assert main(["inspect"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].endswith(r"log a\n.log")
    assert shown.out.replace("\n", "").isprintable()
    assert shown.err.count("unexpected form of answer") == 3


def test_who_could_not_be_answered_once_is_answered_the_next_time(tmp_path: Path) -> None:
    asked: list[bool] = []

    def answer_or_fail(_request: object) -> dict[str, object]:
        asked.append(True)
        if len(asked) == 1:
            raise RuntimeError("can't start new thread")
        return {"still_s": 1.0, "pid": 1}  # the kernel knows better

    listening = ControlSocket(tmp_path, answer_or_fail)
    listening.start()
    try:
        with pytest.raises(ValueError, match="can't start new thread"):
            control.ask(tmp_path / "control.socket", 5.0)
        assert control.ask(tmp_path / "control.socket", 5.0) == {
            "still_s": 1.0,
            "pid": os.getpid(),
            "uid": os.geteuid(),
        }
    finally:
        listening.stop()


def test_a_launch_without_a_free_descriptor_answers_once_it_has_one(tmp_path: Path) -> None:
    """The lack is the whole process's: what asks it runs elsewhere."""
    program = (
        "import os, resource, sys\n"
        "from pathlib import Path\n"
        "from platform_launch.observe.control import ControlSocket\n"
        "listening = ControlSocket(Path(sys.argv[1]), lambda _request: {'still_s': 1.0})\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
        "listening.start()\n"
        "print('none', flush=True)\n"
        "sys.stdin.readline()\n"
        "for one in held: os.close(one)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launch:
        assert launch.stdin is not None
        assert launch.stdout is not None
        assert launch.stdout.readline() == "none\n"
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.settimeout(LIMIT_S)
            waiting.connect(str(tmp_path / "control.socket"))
            waiting.sendall(b"{}\n")
            launch.stdin.write("\n")
            launch.stdin.flush()
            assert json.loads(waiting.makefile().read()) == {"still_s": 1.0}
        launch.stdin.close()


def test_a_launch_that_ends_while_launches_are_found_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    glob = Path.glob

    def ending_one(folder: Path, pattern: str) -> Iterator[Path]:
        found = sorted(glob(folder, pattern))
        found[-1].unlink()
        yield from found

    with launches(tmp_path, answer("gn6", 1, log="a.log"), answer("gn6", 2, log="b.log")):
        monkeypatch.setattr(Path, "glob", ending_one)
        assert main(["inspect"]) == 0
    shown = capsys.readouterr().out
    assert ("a.log" in shown, "b.log" in shown) == (True, False)


def test_a_launch_whose_answer_has_no_end_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(control, "_MOST_BYTES", 0)
    with launches(tmp_path, answer("gn6", 1, log="a.log")):
        assert main(["inspect"]) == 70
    assert "observe0: no whole answer" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "code"), [(b"", 66), (b'{"nodes": [', 70), (b"[" * 99_999, 70)])
def test_a_launch_that_ends_while_it_is_asked_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: bytes, code: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.setattr(tempfile, "tempdir", short)
        folder = Path(short) / f"platform_launch_{os.geteuid()}" / "observe"
        folder.mkdir(parents=True)
        listener.bind(str(folder / "control.socket"))
        listener.listen()

        def end() -> None:
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(data)
            connection.close()

        ending = threading.Thread(target=end)
        ending.start()
        assert main(["inspect"]) == code
        ending.join()
    told = capsys.readouterr().err
    assert ("no JSON object" in told) is bool(data), told
    assert "Expecting" not in told
