"""Ascend NPUs while a job runs: a library that poses as DCMI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.nvml.fake import COMPILER

SOURCE = Path(__file__).parents[1] / "lab/dcmi/dcmi.c"
WELL = ((0, 0),) * 8
# Reads once for each line of input: which devices are watched, and what is found.
SCRIPT = """
import json, sys
from pathlib import Path
from platform_launch.environment import Environment
from platform_launch.hardware import detect
from platform_launch.hardware.gpu_health import read_once
from platform_launch.health.faults import faults
from platform_launch.health.reading import DeviceReading
from tests.hardware import trees

roots = trees.ascend910b(Path(sys.argv[1]))
env = Environment({}, hostname="node7")
gpus = detect(env, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev).gpus
try:
    found = faults(DeviceReading(0.0, read_once(gpus.monitored)))
    said = [[one.id, one.grade.value, f"{one.where}: {one.what}"] for one in found]
except Exception as error:
    said = str(error)
print(json.dumps({"watched": len(gpus.monitored), "said": said}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dcmi")
    assert COMPILER is not None
    command = [COMPILER, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(SOURCE)]
    subprocess.run([*command, "-o", str(folder / "libdcmi.so")], check=True)
    return folder


def look(folder: Path, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "tree")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("number", "answer", "said"),
    [
        (0, (0, 0), []),
        (1, (0, 1), [["npu-alarm", "suspect", "GPU 1: the Ascend driver reports an alarm (minor)"]]),
        (6, (0, 3), [["npu-alarm", "suspect", "GPU 6: the Ascend driver reports an alarm (critical)"]]),
        (5, (-8012, 0), [["gpu-lost", "bad", "GPU 5: no longer answers (DCMI: -8012)"]]),
        (7, (0, 0xFFFFFFFF), [["gpu-lost", "bad", "GPU 7: no longer answers (DCMI: 0xffffffff)"]]),
        (2, (-8255, 0), []),  # not supported
    ],
)
def test_an_npu_with_an_alarm_or_that_is_gone_is_a_finding(
    number: int, answer: tuple[int, int], said: list[list[str]], library: Path, tmp_path: Path
) -> None:
    lines = [*WELL[:number], answer, *WELL[number + 1 :]]
    (tmp_path / "dcmi").write_text("".join(f"{code} {level}\n" for code, level in lines))
    found = look(tmp_path, LD_LIBRARY_PATH=str(library), FAKE_DCMI=str(tmp_path / "dcmi"))
    assert found == {"watched": 8, "said": said}


def test_a_driver_that_fails_is_an_error_and_one_that_is_not_here_is_not(
    library: Path, tmp_path: Path
) -> None:
    failing = look(tmp_path / "a", LD_LIBRARY_PATH=str(library))
    assert failing["said"] == "the Ascend driver answered dcmi_init with error -8001"
    assert look(tmp_path / "b") == {"watched": 0, "said": []}
