"""A server whose disk is full, or whose database somebody holds: people are told, trainings feel nothing."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.lab.disk import requires_mount, small_disk
from tests.lab.waiting import until
from tests.procguard.faults_lab import Site, end_training, site

# As the others' training, and it says much once it is told to.
TALKING = """
import pathlib, sys, time
print("begun", flush=True)
while not pathlib.Path("talk").exists():
    time.sleep(0.05)
for number in range(20_000):
    print(f"line {number:06} {'x' * 80}")
print("all said", flush=True)
while not pathlib.Path("end").exists():
    time.sleep(0.05)
"""


def refuses(here: Site, words: str) -> None:
    """Assert that a change is answered with 503 and reasons, and leaves everything as it was."""
    answer = here.api.post("groups", json={"name": "more", "settings": {"command": "x" * 4_000}})
    assert answer.status_code == 503, answer.text
    assert words in answer.json()["error"]
    assert "nothing was changed" in answer.json()["hint"]
    assert [group["name"] for group in here.api.get("groups").json()] == ["train"]


@pytest.mark.nightly
def test_a_locked_database(tmp_path: Path) -> None:
    with site(tmp_path, "localhost") as here:
        here.launch()
        here.pids()
        with closing(sqlite3.connect(tmp_path / "data" / "procguard.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            refuses(here, "locked")
            end_training(here.nodes[0], 3)
            until(lambda: here.worker("localhost")["state"] == "exited", "the report")
            time.sleep(3.5)  # longer than the control loop waits for the lock
            until(
                lambda: here.worker("localhost")["heartbeat_age_s"] < 1, "heartbeats, which need no database"
            )
            assert here.group()["phase"] == "running", "what could not be written down is not so"
            other.execute("ROLLBACK")
        assert here.reach("failed")["failure"]["exit_code"] == 3
        assert here.starts() == [1]


@requires_mount
def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk, site(tmp_path, "localhost", data=disk) as here:
        here.launch(TALKING)
        pids = here.pids()
        with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 512):
                pass
        for number in range(100):  # what is left of the log of changes may hold some more
            change = {"command": f"{number}{'y' * 3_000}"}
            if here.api.put("groups/train/settings", json=change).status_code == 503:
                break
        refuses(here, "full")
        (here.nodes[0].work / "talk").touch()
        until(lambda: "all said" in said(here), "the training to say all to its own file")
        time.sleep(1)
        until(lambda: here.worker("localhost")["heartbeat_age_s"] < 1, "heartbeats, which need no disk")
        assert here.worker("localhost")["pid"] == pids[0]
        assert "all said" not in log(here)
        (disk / "filling").unlink()
        here.nodes[0].kill()  # a new agent sends logs at once, the old one tries again every 30 s
        here.nodes[0].start(here.url)
        until(lambda: "all said" in log(here), "the rest of the log, now that there is room")
        end_training(here.nodes[0], 0)
        here.reach("finished")
        here.done("POST", "groups", {"name": "more"})


def said(here: Site) -> str:
    """Return the end of what the training wrote on its node."""
    return (here.nodes[0].run_folder(1) / "output.log").read_text()[-200:]


def log(here: Site) -> str:
    """Return the end of the log as the server has it."""
    text: str = here.api.get("workers/localhost-0/log", params={"limit": 5}).text
    return text
