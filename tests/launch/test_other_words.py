"""No program reads our prose: with every message put into other words, whatever is concluded stays the same.

Each launch runs in a process in which all words of all lines stand the other way round.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch import events
from platform_launch.events import Event, line
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.explaining import explain_file
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
# Chained before the launcher's own modules take the function; helper processes get it as well.
OTHER_WORDS = """
import sys
sys.path.insert(0, {root!r})
import platform_launch.events as events
straight = events.message
events.message = lambda said: " ".join(reversed(straight(said).split(" ")))
"""
SCRIPT = """
import os, time
failing, tried = os.environ["FAILING"], os.environ.get("PLATFORM_LAUNCH_RESTART_COUNT", "0")
if failing != "-1" and tried < os.environ["WORKS_AT"]:
    if os.environ["NODE_RANK"] == failing:
        raise ValueError("bad clip")
    time.sleep(600)
"""


def launch(folder: Path, *options: str, words: Path | None, **variables: str) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    settings = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "FAILING": "-1", "WORKS_AT": "9"}
    if words is not None:
        settings["PYTHONPATH"] = str(words)
    run = [sys.executable, str(ROOT / "platform_launch" / "__main__.py"), "run", "--launcher", "python"]
    return subprocess.Popen(
        [*run, "--script", str(script), "--log-dir", str(folder / "logs"), "--no-doctor", *options],
        env={**settings, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def two_nodes(
    folder: Path, *options: str, words: Path | None, **variables: str
) -> tuple[list[int], list[str]]:
    """Return exit codes and outputs of a job of two nodes on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"MASTER_PORT": str(one.getsockname()[1]), "INIT_MASTER_PORT": str(other.getsockname()[1])}
    nodes = [
        launch(
            folder, *options, words=words, WORLD_SIZE="2", RANK=str(rank), MASTER_ADDR="127.0.0.1",
            **ports, **variables,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [node.communicate(timeout=LIMIT_S)[0] for node in nodes]
    return [node.returncode for node in nodes], said


@pytest.fixture
def other_words(tmp_path: Path) -> Path:
    """A folder that turns the words around in each Python process that has it on its path."""
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(OTHER_WORDS.format(root=str(ROOT)))
    return folder


def logs_of(folder: Path) -> list[Path]:
    return sorted((folder / "logs").glob("*.log"))


def ids_of(log: Path) -> list[str]:
    """Return what was said, but for what depends on who comes first and on how long a script ran."""
    by_chance = ("rendezvous-waiting", "memory-peak")
    return [one.id for one in events.read(events.beside(log)) or () if one.id not in by_chance]


def essence(verdict: Verdict) -> tuple[object, ...]:
    return (verdict.kind, verdict.cause, verdict.where.node, verdict.where.rank, verdict.title)


def conclusions(folder: Path) -> list[tuple[object, ...]]:
    """Return what ``why`` makes of each node's log, with its events and with the marks alone."""
    found = []
    for log in logs_of(folder):
        found.append(essence(explain_file(log)))
        events.beside(log).unlink()
        found.append(essence(explain_file(log)))
    return found


def in_both_words(tmp_path: Path, other_words: Path, *options: str, **variables: str) -> list[Any]:
    results = []
    for name, words in (("straight", None), ("turned", other_words)):
        folder = tmp_path / name
        folder.mkdir()
        codes, said = two_nodes(folder, *options, words=words, **variables)
        records = [
            json.loads(path.read_text())["outcome"] for path in sorted((folder / "logs").glob("*.json"))
        ]
        first = [record["first_failed_node"] for record in records]
        ids = [ids_of(log) for log in logs_of(folder)]
        assert ("roll call: all 2 nodes" in said[0]) is (words is None), said[0]
        results.append((codes, first, ids, conclusions(folder)))
    return results


@takes_long
def test_success_is_success_in_any_words(tmp_path: Path, other_words: Path) -> None:
    straight, turned = in_both_words(tmp_path, other_words)
    assert straight == turned
    assert straight[0] == [0, 0]
    assert {kind for kind, *_ in straight[3]} == {"finished"}


@takes_long
def test_a_failure_and_whom_it_followed_are_told_in_any_words(tmp_path: Path, other_words: Path) -> None:
    straight, turned = in_both_words(tmp_path, other_words, FAILING="1")
    assert straight == turned
    assert straight[1] == [1, 1]
    assert [kind for kind, *_ in straight[3]] == ["consequence", "consequence", "cause", "cause"]


@pytest.mark.nightly
def test_restarts_go_on_in_any_words(tmp_path: Path, other_words: Path) -> None:
    straight, turned = in_both_words(tmp_path, other_words, "--max-restarts", "1", FAILING="0", WORKS_AT="1")
    assert straight == turned
    assert straight[0] == [0, 0]
    assert all("nodes-restart" in ids for ids in straight[2])


def test_an_absent_node_is_told_in_any_words(tmp_path: Path, other_words: Path) -> None:
    found = []
    for name, words in (("straight", None), ("turned", other_words)):
        folder = tmp_path / name
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = {
                "MASTER_PORT": str(one.getsockname()[1]),
                "INIT_MASTER_PORT": str(other.getsockname()[1]),
            }
        node = launch(
            folder, "--roll-call-timeout", "3", words=words,
            WORLD_SIZE="2", RANK="0", MASTER_ADDR="127.0.0.1", **ports,
        )  # fmt: skip
        node.communicate(timeout=LIMIT_S)
        found.append((node.returncode, conclusions(folder)))
    assert found[0] == found[1]
    assert found[0][0] == 75
    assert {essence[1] for essence in found[0][1]} == {"nodes_absent"}


def test_the_doctor_tells_a_warning_once_in_any_words(tmp_path: Path, other_words: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    found = []
    for path in ({}, {"PYTHONPATH": str(other_words)}):
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "platform_launch" / "__main__.py"), "doctor", "--quick"),
                *("--launcher", "python", "--script", str(script), "--format", "json"),
            ],
            env={"PATH": os.environ["PATH"], "HOME": "/x", "NCCL_MADE_UP": "1", "NCCL_TIMEOUT": "5", **path},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        found.append([(one["id"], one["where"]) for one in json.loads(done.stdout)["findings"]])
    assert found[0] == found[1]
    assert found[0].count(("variable-unknown", "NCCL_MADE_UP")) == 1


def test_the_words_can_be_turned_at_all() -> None:
    said = Event("training-finished", "SUCCESS", fields={"duration": "4 s"})
    assert line(said) == "training finished after 4 s"
