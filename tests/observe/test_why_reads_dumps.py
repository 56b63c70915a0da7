from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from platform_launch.cli.why import command
from platform_launch.errors import InputError
from tests.observe.dump_files import document, entry, gloo, nccl

FRAMES = [("/job/train.py", 71, "step")]


def put(folder: Path, *, absent: int | None = None) -> None:
    """Write the dumps of four ranks, of which rank 2 is behind."""
    for rank in range(4):
        status = (5, 5) if rank == 2 else (6, 5)
        entries = [] if rank == 2 else [entry(6, frames=FRAMES)]
        dump = document(entries, status={0: status}, groups={"0": range(4)})
        if rank != absent:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(nccl(dump))


def why(*arguments: str) -> Any:
    done = CliRunner().invoke(command, ["--format", "json", *arguments], catch_exceptions=False)
    return json.loads(done.stdout)


def test_folder_of_dumps_alone_names_operation_group_and_suspects(tmp_path: Path) -> None:
    put(tmp_path)
    said = why(str(tmp_path))
    assert said["suspect_ranks"] == [2]
    (waiting,) = said["waiting"]
    assert (waiting["operation"], waiting["sequence"], waiting["group_description"]) == (
        "nccl:all_reduce",
        6,
        "default_pg",
    )
    assert (waiting["came"], waiting["behind"], waiting["group_ranks"]) == ([0, 1, 3], [2], [0, 1, 2, 3])
    assert waiting["frame"] == "/job/train.py:71 (step)"


def test_text_tells_a_person_the_same(tmp_path: Path) -> None:
    put(tmp_path)
    lines = CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False).stdout.splitlines()
    assert lines[0] == "suspects:   rank 2"
    assert "called at /job/train.py:71 (step); rank 2 not there yet" in lines[1]


def test_dumps_beside_logs_are_read_with_them(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "train.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 3, in main\n    raise OSError\nOSError\n'
    )
    said = why(str(tmp_path))
    assert said["suspect_ranks"] == [2]
    assert said["logs"] == [str(tmp_path / "train.log")]
    assert said["exception"]["type"] == "OSError"


def test_files_can_be_named_one_by_one_as_json_too(tmp_path: Path) -> None:
    for rank, done in enumerate((6, 5)):
        dump = document([entry(6)] if rank == 0 else [], status={0: (6 if rank == 0 else done, 5)})
        (tmp_path / f"gloo_{rank}.json").write_bytes(gloo(dump))
    assert why(*(str(tmp_path / f"gloo_{rank}.json") for rank in range(2)))["suspect_ranks"] == [1]


def test_broken_dump_is_named_and_its_rank_is_no_suspect(tmp_path: Path) -> None:
    put(tmp_path)
    broken = tmp_path / "nccl_trace_rank_3"
    broken.write_bytes(broken.read_bytes()[:-60])
    said = why(str(tmp_path))
    assert said["missing_ranks"] == []
    assert str(broken) in said["unreadable_dumps"][0]
    assert said["suspect_ranks"] == [2]


def test_dumps_in_a_folder_per_node_are_read_together(tmp_path: Path) -> None:
    put(tmp_path)
    for rank in range(4):
        (tmp_path / f"node{rank // 2}").mkdir(exist_ok=True)
        dump = tmp_path / f"nccl_trace_rank_{rank}"
        dump.rename(tmp_path / f"node{rank // 2}" / dump.name)
    said = why(str(tmp_path))
    assert (sorted(said["dumps"]), said["suspect_ranks"]) == (["0", "1", "2", "3"], [2])


def test_dumps_of_an_earlier_and_larger_job_are_left_out(tmp_path: Path) -> None:
    put(tmp_path)
    for rank in range(4, 8):
        old = entry(90, frames=FRAMES)
        old["time_created_ns"] -= 3600 * 10**9
        dump = document([old], status={0: (90, 89)}, groups={"0": range(8)})
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(nccl(dump))
    said = why(str(tmp_path))
    assert (sorted(said["older_dumps"]), sorted(said["dumps"])) == (
        ["4", "5", "6", "7"],
        ["0", "1", "2", "3"],
    )
    assert said["suspect_ranks"] == [2]


def test_operation_of_the_others_and_its_line_are_named(tmp_path: Path) -> None:
    save = [("/job/save.py", 9, "save")]
    for rank in range(4):
        one = entry(6, "all_gather", frames=save) if rank == 0 else entry(6, frames=FRAMES)
        dump = document([one], status={0: (6, 5)}, groups={"0": range(4)})
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(nccl(dump))
    said = why(str(tmp_path))
    assert said["suspect_ranks"] == [0]
    text = CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False).stdout
    assert "ranks 1-3 in all_reduce #6" in text
    assert "rank 0 in all_gather #6, called at /job/save.py:9 (save) under the same number" in text


def test_default_group_of_gloo_has_its_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        entries = [entry(6, backend="gloo")] if rank else [entry(5, state="completed", backend="gloo")]
        dump = document(entries, status={0: (6, 5)}, groups={"": ()})
        (tmp_path / f"gloo_{rank}.json").write_bytes(gloo(dump))
    (waiting,) = why(str(tmp_path))["waiting"]
    assert (waiting["group_ranks"], waiting["behind"]) == ([0, 1, 2], [0])


def test_dump_of_no_known_rank_is_an_error_of_input(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(nccl(document([entry(6)], status={0: (6, 5)})))
    done = CliRunner().invoke(command, [str(tmp_path / "dump")])
    assert isinstance(done.exception, InputError)
    assert "name that ends with its rank" in done.exception.message


def test_logs_alone_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("ERROR something odd\n")
    assert "suspect_ranks" not in why(str(tmp_path))
