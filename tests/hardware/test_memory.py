"""Memory that is left, from recorded machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.hardware import host
from tests.hardware.trees import Roots, machine

GIB = 1024**3


def left(roots: Roots) -> float | None:
    return host.available_gib(roots.sys, roots.proc)


def test_the_rest_of_a_limit_is_what_is_left(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{15 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {9 * GIB}\ninactive_file {4 * GIB}\n",
    }
    assert left(machine(tmp_path, files=files)) == 5.0


def test_version_1_says_the_same_in_other_words(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{7 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB}\n",
    }
    assert left(machine(tmp_path, cgroup="3:memory:/\n", files=files)) == 2.0


def test_a_machine_without_limits_has_what_the_kernel_calls_available(tmp_path: Path) -> None:
    files = {"proc/meminfo": f"MemTotal: {64 * 1024**2} kB\nMemAvailable: {3 * 1024**2} kB\n"}
    assert left(machine(tmp_path, files=files)) == 3.0


def test_a_system_that_says_nothing_is_not_an_error(tmp_path: Path) -> None:
    assert left(Roots(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev")) is None


@pytest.mark.parametrize(("effective", "exempt"), [("000001ffffffffff", True), ("00000000a80425fb", False)])
def test_a_capability_exempts_from_the_limit_on_locked_memory(
    tmp_path: Path, effective: str, exempt: bool
) -> None:
    roots = machine(tmp_path, files={"proc/self/status": f"Name:\tpython\nCapEff:\t{effective}\n"})
    assert host.may_lock_any(roots.proc) is exempt
