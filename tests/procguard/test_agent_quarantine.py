"""An agent and the quarantine file: what it tells of it, and what it writes to release its node."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from platform_launch.health import quarantine
from platform_launch.health.quarantine import QuarantinedNode
from platform_launch.procguard.agent.machine import QuarantineWatch
from platform_launch.procguard.api.wire import Heartbeat
from tests.lab.waiting import until
from tests.procguard.agent_lab import node_in, serving

BEGAN = time.time() - 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.jsonl"


def watch(file: Path, said: list[str] | None = None) -> QuarantineWatch:
    heard = [] if said is None else said
    return QuarantineWatch(file, {"gn7", "host7"}, {"GPU-7a"}, lambda _level, text: heard.append(text))


@pytest.mark.parametrize(("name", "gpus"), [("gn7", ()), ("host7", ()), ("gn3", ("GPU-7a",))])
def test_a_node_is_known_by_its_names_and_its_gpus(file: Path, name: str, gpus: tuple[str, ...]) -> None:
    quarantine.add(file, QuarantinedNode("gn6", BEGAN, None, "another"))
    quarantine.add(file, QuarantinedNode(name, BEGAN, BEGAN + 3600, "XID 79", "job-1", gpus))
    node = watch(file)
    node.poll(file)
    assert node.held is not None
    assert (node.held.name, node.held.until, node.held.job) == (name, BEGAN + 3600, "job-1")


def test_a_release_is_written_for_all_and_only_of_the_quarantine_that_was_meant(file: Path) -> None:
    node = watch(file)
    quarantine.add(file, QuarantinedNode("gn7", BEGAN, None, "XID 79"))
    seen = []
    for wanted in (None, BEGAN - 1, BEGAN):
        node.release(wanted)
        node.poll(file)
        seen.append(node.held is not None)
    assert seen == [True, True, False]
    assert quarantine.read(file) == ()


def test_what_cannot_be_released_or_read_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    quarantine.add(file, QuarantinedNode("gn7", BEGAN, 1e300, "XID 79"))
    said: list[str] = []
    node = watch(file, said)
    monkeypatch.setattr(quarantine, "write_all", full)
    node.release(BEGAN)
    node.poll(file)
    assert node.held is not None
    assert node.held.trouble
    file.unlink()
    file.mkdir()
    node.poll(file)
    assert node.held.reason == "XID 79", "what was known holds"
    assert len(said) == 2


@pytest.mark.parametrize("deep", [20, 100, 300])
def test_sentences_in_sentences_without_end_keep_no_agent_from_its_heartbeats(file: Path, deep: int) -> None:
    sentence: dict[str, Any] = {"code": "quoted", "values": {"text": "fan"}}
    for _ in range(deep):
        sentence = {"code": "quoted", "values": {"text": sentence}}
    line = {"event": "quarantined", "node": "gn7", "since": BEGAN, "reason": "fan", "sentence": sentence}
    file.write_text(json.dumps(line) + "\n")
    node = watch(file)
    node.poll(file)
    beat = Heartbeat(node="gn7", instance="instance-gn7", quarantine=node.held, workers=())
    read = Heartbeat.model_validate_json(beat.model_dump_json()).quarantine
    assert read is not None
    assert (read.reason, read.reason_sentence) == ("fan", None)


def test_the_first_heartbeat_knows_of_it_already(file: Path, tmp_path: Path) -> None:
    quarantine.add(file, QuarantinedNode("gn6", BEGAN, None, "XID 79"))
    with serving() as server, node_in(tmp_path / "node") as node:
        node.start(server.url, "--quarantine", str(file))
        until(lambda: server.beats)
        first = server.quarantines[0]
    assert first is not None
    assert first.since == BEGAN


def test_a_name_that_is_no_text_is_told_as_one(file: Path) -> None:
    entry = {"event": "quarantined", "node": "gn\ud800", "since": BEGAN, "gpus": ["GPU-7a"]}
    file.write_text(json.dumps(entry) + "\n")
    node = watch(file)
    node.poll(file)
    assert node.held is not None
    assert node.held.name == "gn\\ud800"
    node.release(BEGAN)
    node.poll(file)
    assert node.held is None
