"""What is imported before the training of one node starts, and what may fail or hang to be imported after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]

# A hook writes down what is imported when the training is started; its arguments are its script's name.
_LAUNCH = """
import json, sys
from pathlib import Path
script, imported = Path(sys.argv[1]), Path(sys.argv[2])
stuck = script.with_name("stuck")
def hear(event, arguments):
    if event == "os.posix_spawn" and str(script) in map(str, arguments[1]):
        imported.write_text(json.dumps(sorted(sys.modules)))
    if event == "import" and arguments[0] == "platform_launch.launch.hang_watch" and stuck.exists():
        stuck.with_name("importing").touch()
        stuck.read_text()  # a pipe that nobody ever writes to
sys.addaudithook(hear)
sys.modules.update(dict.fromkeys(sys.argv[3:]))  # an import of such a module fails
from platform_launch.cli import main
launch = ["run", "--launcher", "python", "--script", str(script), "--log-dir", str(script.parent)]
sys.exit(main(launch))
"""
_NOTICES = {"platform_launch.observe.notices"}
_WATCHES = {"platform_launch.launch.hang_watch", "platform_launch.launch.health_watch"}


@contextmanager
def launched(folder: Path, script: str, *missing: str) -> Iterator[subprocess.Popen[str]]:
    """Launch a training in a folder, without some modules; ``imported`` there names those it started with."""
    training = folder / "train.py"
    training.write_text(script)
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(training), str(folder / "imported"), *missing],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_training_of_one_node_waits_for_the_import_of_nothing_that_only_watches_it_or_meets_others(
    tmp_path: Path,
) -> None:
    with launched(tmp_path, "raise SystemExit(3)\n") as launch:
        _, words = launch.communicate(timeout=LIMIT_S)
    assert launch.returncode == 3, words
    imported = set(json.loads((tmp_path / "imported").read_text()))
    assert "platform_launch.launch.job" in imported
    meeting = {name for name in imported if name.startswith("platform_launch.rendezvous.run.")}
    meeting |= {"platform_launch.launch.together", "platform_launch.rendezvous.protocol"} & imported
    watching = _WATCHES & imported
    watching |= {"platform_launch.health.comparison", "platform_launch.hardware.gpu_health"} & imported
    meeting |= {"platform_launch.rendezvous.ending", "platform_launch.rendezvous.restarts"} & imported
    watching |= {name for name in imported if name.startswith("platform_launch.observe.")} - _NOTICES
    watching |= {
        f"platform_launch.launch.{name}" for name in ("cost", "process_watch", "run_report")
    } & imported
    other = {"asyncio", "concurrent.futures", "http.client", "logging", "rich", "ssl", "yaml"} & imported
    other |= {"encodings.idna", "hashlib", "statistics", "textwrap"} & imported
    assert meeting | watching | other == set()
    assert len([name for name in imported if name.startswith("platform_launch")]) <= 140


def test_a_training_keeps_its_end_where_what_would_watch_it_cannot_be_imported(tmp_path: Path) -> None:
    with launched(tmp_path, "raise SystemExit(int(input()))\n", *_WATCHES) as launch:
        until(lambda: any("[not-observed]" in log.read_text() for log in tmp_path.glob("*.log")))
        _, words = launch.communicate("3\n", timeout=LIMIT_S)
    assert launch.returncode == 3, words
    assert "ModuleNotFoundError" in words
    assert "[training-failed exit_code=3]" in words
    assert not list(tmp_path.glob("platform_launch_*/observe-*"))


def test_a_signal_reaches_a_training_while_what_watches_it_is_on_a_disk_that_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stuck")
    ready, importing = tmp_path / "ready", tmp_path / "importing"
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "signal.pause()\n"
    )
    with launched(tmp_path, script) as launch:
        until(lambda: ready.exists() and importing.exists())
        launch.send_signal(signal.SIGTERM)
        _, words = launch.communicate(timeout=LIMIT_S)
    assert launch.returncode == 7, words
    assert "signal=SIGTERM" in words
    assert not list(tmp_path.glob("platform_launch_*/observe-*"))
