from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.why import explain_file, explain_paths
from platform_launch.why.sources import logs_in, node_of


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("train_demo_node3_20261121-041500.log", 3),
        ("train_my_node_7_job_node12_20261121-041500.log", 12),
        ("node-4.log", 4),
        ("worker.node5.txt", 5),
        ("train.log", None),
        ("anode6x.log", None),
    ],
)
def test_name_of_a_log_tells_its_node(name: str, node: int | None) -> None:
    assert node_of(name) == node


def test_folder_stands_for_the_latest_launch_of_each_node(tmp_path: Path) -> None:
    for name in (
        "train_old_node0_20261119-000000.log",
        "train_demo_node0_20261120-000000.log",
        "train_demo_node0_20261121-000001.log",
        "train_demo_node1_20261121-000000.log",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    assert [log.name for log in logs_in([tmp_path])] == [
        "train_demo_node0_20261121-000001.log",
        "train_demo_node1_20261121-000000.log",
    ]


def test_folder_of_other_logs_stands_for_all_of_them(tmp_path: Path) -> None:
    for name in ("b.log", "a.log"):
        (tmp_path / name).touch()
    assert [log.name for log in logs_in([tmp_path])] == ["a.log", "b.log"]


def test_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.log does not exist"):
        explain_file(tmp_path / "absent.log")


def test_folder_without_logs_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \*\.log"):
        explain_paths([tmp_path])


def test_log_that_cannot_be_read_is_named() -> None:
    # Opens, and fails at its first byte with an input/output error.
    with pytest.raises(InputError, match=r"/proc/self/mem cannot be read: Input/output error"):
        explain_file(Path("/proc/self/mem"))
