"""--launcher python: one process a node, which finds its place in the variables."""

from __future__ import annotations

import json
from pathlib import Path

from tests.examples.lab import said, simulate

PLACE = """
import json, os, sys
names = ("NNODES", "NODE_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
print("place", json.dumps([os.environ.get(name) for name in names] + sys.argv[1:]))
"""


def test_each_node_runs_one_process_that_knows_its_place(tmp_path: Path) -> None:
    script = tmp_path / "place of mine.py"
    script.write_text(PLACE)
    output = simulate("--launcher", "python", "--script", str(script), "--", "$HOME", folder=tmp_path)
    places = sorted(json.loads(line.removeprefix("place ")) for line in said(output, "place ["))
    assert places == [["2", rank, rank, "2", "0", "127.0.0.1", "$HOME"] for rank in ("0", "1")]
