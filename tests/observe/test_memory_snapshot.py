"""What held the GPU's memory when a rank ran out of it: written by the hook, read by ``why``."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.cli import main
from platform_launch.errors import InputError
from platform_launch.observe.memory_snapshot import read_snapshot
from tests.lab.waiting import LIMIT_S
from tests.observe.test_hook import environment

GIB = 1024**3
STARTED = "20261129-041539"
LIBRARY = "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"


def block(gib: float, line: int, state: str = "active_allocated") -> dict[str, Any]:
    frames = [
        {"filename": LIBRARY, "line": 125, "name": "forward"},
        {"filename": "/job/train.py", "line": line, "name": "step"},
    ]
    return {"address": 1, "size": int(gib * GIB), "requested_size": 1, "state": state, "frames": frames}


def document(*blocks: dict[str, Any]) -> dict[str, Any]:
    """Return the form of torch.cuda.memory._snapshot (torch 2.13)."""
    history = [
        {"action": "alloc", "addr": 1, "size": 5, "stream": 0, "frames": []},
        {"action": "oom", "device_free": GIB, "size": 2 * GIB, "stream": 0, "frames": []},
    ]
    segment = {
        "address": 1,
        "total_size": 80 * GIB,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "blocks": list(blocks),
    }
    return {
        "segments": [segment],
        "device_traces": [history],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "external_annotations": [],
    }


HELD = document(*(block(10, 21) for _ in range(3)), block(20, 56), block(25, 9, "inactive"), block(0.5, 70))


def test_largest_owners_of_the_memory_are_named(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(HELD))
    found = read_snapshot(path, 3)
    assert [(one.place, one.bytes // GIB, one.blocks) for one in found.owners[:2]] == [
        ("/job/train.py:21 in step", 30, 3),
        ("/job/train.py:56 in step", 20, 1),
    ]
    assert found.line() == (
        "rank 3 held 50.5 GiB, and wanted 2.00 GiB more: 30.0 GiB at /job/train.py:21 in step; "
        "20.0 GiB at /job/train.py:56 in step; 0.5 GiB at /job/train.py:70 in step"
    )


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch evil",))


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps(HELD)[:-40], pickle.dumps({"segments": Evil()})]
)
def test_snapshot_that_is_none_is_refused_and_runs_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"snapshot\.pickle cannot be read"):
        read_snapshot(path, 0)
    assert not Path("evil").exists()


@pytest.mark.parametrize(
    "odd", [7, [], {"segments": [7, {"blocks": [{"state": "active_allocated", "frames": 7}]}]}]
)
def test_snapshot_of_another_form_tells_nothing(odd: object, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(odd))
    assert read_snapshot(path, 0).allocated_bytes == 0


def test_why_names_them_for_the_launch_that_it_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / f"train_job_node0_{STARTED}.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 21, in step\n    net(x)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    (tmp_path / f"memory_job_{STARTED}_rank3.pickle").write_bytes(pickle.dumps(HELD))
    (tmp_path / "memory_job_20261128-000000_rank5.pickle").write_bytes(pickle.dumps(HELD))
    (tmp_path / f"memory_job_{STARTED}_rank4.pickle").write_bytes(b"")
    assert main(["why", str(log)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory:")]
    assert said == [f"memory:     {read_snapshot(tmp_path / f'memory_job_{STARTED}_rank3.pickle', 3).line()}"]
    assert main(["why", "--format", "json", str(log)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["memory_snapshots"]
    assert (found["rank"], found["owners"][0]["blocks"]) == (3, 3)


STAND_IN = """
import sys
queued = []
class _C:
    @staticmethod
    def _cuda_attach_out_of_memory_observer(observer):
        _C.observer = observer
class memory:
    @staticmethod
    def _record_memory_history(max_entries, stacks):
        print("recording", max_entries, stacks)
    @staticmethod
    def _dump_snapshot(path):
        open(path, "w").write("snapshot")
def _lazy_call(act):
    queued.append(act)
sys.modules["torch"]._C = _C
"""
SCRIPT = """
import torch, torch.cuda
print("imported", len(torch.cuda.queued))
for act in torch.cuda.queued: act()
for _ in range(3): torch._C.observer(0, 1, 2, 3)
"""


@pytest.mark.parametrize("asked", [True, False])
def test_hook_records_from_the_moment_that_cuda_starts_and_writes_once(asked: bool, tmp_path: Path) -> None:
    """A stand-in for torch: what CUDA's own does needs a GPU."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "cuda.py").write_text(STAND_IN)
    (folder := tmp_path / "observe").mkdir(mode=0o700)
    prefix = {"PLATFORM_LAUNCH_MEMORY_SNAPSHOT": str(tmp_path / "memory_rank")} if asked else {}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT if asked else "import torch.cuda\nprint(torch.cuda.queued)"],
        env=environment(folder, tmp_path, **prefix),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == ("imported 1\nrecording 100000 python\n" if asked else "[]\n"), done.stderr
    written = [path.name for path in tmp_path.glob("memory_rank*")]
    assert written == (["memory_rank3.pickle"] if asked else [])
