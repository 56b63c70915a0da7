"""What is imported before the training of one node starts, and what may fail to be imported after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A hook writes down what is imported when the training is started; its arguments are its script's name.
_LAUNCH = """
import json, sys
from pathlib import Path
script, imported = Path(sys.argv[1]), Path(sys.argv[2])
def hear(event, arguments):
    if event == "os.posix_spawn" and str(script) in map(str, arguments[1]):
        imported.write_text(json.dumps(sorted(sys.modules)))
sys.addaudithook(hear)
sys.modules.update(dict.fromkeys(sys.argv[3:]))  # an import of such a module fails
from platform_launch.cli import main
launch = ["run", "--launcher", "python", "--script", str(script), "--log-dir", str(script.parent)]
sys.exit(main(launch))
"""
_WATCHES = {"platform_launch.launch.hang_watch", "platform_launch.launch.health_watch"}


def launch(tmp_path: Path, *missing: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Launch a training that ends with 3, without some modules; return also what it was started with."""
    script, imported = tmp_path / "train.py", tmp_path / "imported"
    script.write_text("raise SystemExit(3)\n")
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCH, str(script), str(imported), *missing],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, set(json.loads(imported.read_text()))


def test_a_training_of_one_node_waits_for_the_import_of_nothing_that_only_watches_it_or_meets_others(
    tmp_path: Path,
) -> None:
    done, imported = launch(tmp_path)
    assert done.returncode == 3, done.stderr
    assert "platform_launch.launch.nodes" in imported
    meeting = {name for name in imported if name.startswith("platform_launch.rendezvous.run.")}
    meeting |= {"platform_launch.launch.together", "platform_launch.rendezvous.protocol"} & imported
    watching = (_WATCHES | {"platform_launch.observe.hang", "platform_launch.observe.monitor"}) & imported
    other = {"asyncio", "concurrent.futures", "http.client", "logging", "rich", "ssl", "yaml"} & imported
    assert meeting | watching | other == set()
    assert len([name for name in imported if name.startswith("platform_launch")]) <= 155


def test_a_training_keeps_its_end_where_what_would_watch_it_cannot_be_imported(tmp_path: Path) -> None:
    done, _ = launch(tmp_path, *_WATCHES)
    assert done.returncode == 3, done.stderr
    assert "[not-observed]" in done.stderr
    assert "ModuleNotFoundError" in done.stderr
    assert "[training-failed exit_code=3]" in done.stderr
    assert not list(tmp_path.glob("platform_launch_*/observe-*"))
