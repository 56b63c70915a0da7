"""Nodes that no job should be put on for a while."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform_launch.cli import main
from platform_launch.errors import InputError
from platform_launch.events import Event, line
from platform_launch.health import quarantine
from platform_launch.health.quarantine import QuarantinedNode, quarantined

BROKEN = QuarantinedNode("gn7", 1000.0, 2000.0, "GPU 3: XID 79", "job-1", ("GPU-77",))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shared" / "quarantine.jsonl"


def test_a_node_is_in_quarantine_until_its_time_is_over_or_it_is_released(file: Path) -> None:
    assert quarantine.read(file) == ()
    quarantine.add(file, BROKEN)
    assert quarantine.read(file, 1500) == (BROKEN,)
    assert quarantine.read(file, 2000) == ()
    quarantine.release(file, "gn7")
    assert quarantine.read(file, 1500) == ()
    quarantine.add(file, QuarantinedNode("gn7", 1600.0, None, "again"))
    assert [node.reason for node in quarantine.read(file, 1e12)] == ["again"]


def test_a_candidate_is_known_by_its_name_or_by_one_of_its_gpus() -> None:
    candidates = {"gn7": ["GPU-1"], "gn8": ["GPU-8", "GPU-77"], "gn9": []}
    assert quarantined([BROKEN], candidates) == {"gn7": BROKEN, "gn8": BROKEN}
    assert quarantined([], candidates) == {}


def test_a_line_that_cannot_be_read_spoils_only_itself(file: Path) -> None:
    quarantine.add(file, BROKEN)
    with file.open("ab") as torn:
        torn.write(b'{"event": "quarantined", "node": "gn')
    quarantine.add(file, QuarantinedNode("gn9", 0.0, None, "fan"))
    with file.open("ab") as junk:
        junk.write(b'\xff\n[1]\nnull\n{"event":"quarantined","node":"gn1","since":"now"}\n{"node":3}\n')
        junk.write(b'{"event":"quarantined","node":"gn1","since":1%s}\n' % (b"0" * 400))
    told: list[Event] = []
    assert [node.node for node in quarantine.read(file, 1500, told.append)] == ["gn7", "gn9"]
    (said,) = map(line, told)
    assert said == (
        f"{file}, line 2, as 6 more, is skipped: expected a JSON object with node, event and since"
    )


def test_a_file_behind_a_symbolic_link_is_neither_read_nor_written(file: Path) -> None:
    quarantine.add(file, BROKEN)
    link = file.with_name("link")
    link.symlink_to(file)
    for use in (lambda: quarantine.read(link), lambda: quarantine.add(link, BROKEN)):
        with pytest.raises(InputError, match="it is a symbolic link"):
            use()


def test_a_pipe_in_its_place_holds_no_launch_up(file: Path) -> None:
    file.parent.mkdir()
    os.mkfifo(file)
    assert quarantine.read(file) == ()


def test_a_reason_cannot_steer_a_terminal(file: Path) -> None:
    quarantine.add(file, QuarantinedNode("gn7", 0.0, None, "\x1b[2Jgone\nand a second line"))
    [node] = quarantine.read(file)
    assert node.reason.isprintable()


def test_many_writers_at_once_lose_nothing(file: Path) -> None:
    script = """
import sys
from pathlib import Path
from platform_launch.health import quarantine
for number in range(40):
    name = f"gn{sys.argv[2]}-{number}"
    quarantine.add(Path(sys.argv[1]), quarantine.QuarantinedNode(name, 0.0, None, "x" * 300))
"""
    writers = [subprocess.Popen([sys.executable, "-c", script, str(file), str(n)]) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(quarantine.read(file)) == 160
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        quarantine.read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Not a directory|File exists"):
        quarantine.add(tmp_path / "file" / "list", BROKEN)


def test_the_command_adds_lists_and_releases(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLATFORM_LAUNCH_QUARANTINE", str(file))
    assert main(["quarantine", "add", "gn7", "gn3", "--reason", "fan", "--hours", "2"]) == 0
    assert main(["quarantine", "list", "--format", "names"]) == 0
    assert "gn3,gn7" in capsys.readouterr().out
    assert main(["quarantine", "release", "gn3"]) == 0
    assert main(["quarantine", "list"]) == 0
    shown = capsys.readouterr().out
    assert "gn7: in quarantine until" in shown
    assert "gn3" not in shown.splitlines()[-1]
    assert main(["quarantine", "release", "gn3"]) == 66
    monkeypatch.delenv("PLATFORM_LAUNCH_QUARANTINE")
    assert main(["quarantine", "list"]) == 64


def test_a_line_for_which_the_disk_has_no_room_is_no_success_and_spoils_no_other(file: Path) -> None:
    quarantine.add(file, QuarantinedNode("gn6", 0.0, None, "XID 79"))
    code = (
        "import resource, sys; from pathlib import Path; from platform_launch.health import quarantine\n"
        "file = Path(sys.argv[1]); room = file.stat().st_size + 10\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))\n"
        "quarantine.add(file, quarantine.QuarantinedNode('gn7', 0.0, None, 'XID 48'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False
    )
    assert "InputError: the quarantine file" in done.stderr
    quarantine.add(file, QuarantinedNode("gn8", 0.0, None, "XID 48"))
    assert [node.node for node in quarantine.read(file)] == ["gn6", "gn8"]


def test_a_file_that_has_grown_is_compacted_when_a_node_is_added(file: Path) -> None:
    quarantine.add(file, QuarantinedNode("kept", time.time(), None, "GPU lost"))
    added = json.loads(file.read_text())
    lines = (json.dumps({**added, "node": f"n{number % 7}", "until": 1.0}) for number in range(8_000))
    with file.open("a") as grown:
        grown.writelines(f"{line}\n" for line in lines)
    assert file.stat().st_size > 2**20
    quarantine.add(file, QuarantinedNode("new", time.time(), None, "GPU lost"))
    assert file.stat().st_size < 1000
    assert [entry.node for entry in quarantine.read(file)] == ["kept", "new"]
