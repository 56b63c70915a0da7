"""Processors, memory and limits of recorded machines, and of this one."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from platform_launch.hardware import Host, cgroup, host
from tests.hardware import trees
from tests.hardware.trees import Roots, machine

GIB = 1024**3
HUGE = "9223372036854771712\n"  # what cgroup v1 writes for "no limit"


def read(roots: Roots) -> Host:
    return host.find("node0", sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)


def test_a_pod_has_the_processors_and_memory_of_its_limits(tmp_path: Path) -> None:
    pod = read(trees.bare_pod(tmp_path))
    assert (pod.cpus, pod.memory_gib, pod.imex_channel) == (4.0, 16.0, False)


def test_a_whole_node_has_all_of_its_own(tmp_path: Path) -> None:
    node = read(trees.h100_infiniband(tmp_path))
    assert (node.cpus, node.memory_gib) == (224.0, 2048.0)


def test_gb200_node_has_an_imex_channel(tmp_path: Path) -> None:
    assert read(trees.gb200(tmp_path)).imex_channel


def test_affinity_counts_where_it_is_tighter_than_the_quota(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "1600000 100000\n"}
    assert read(machine(tmp_path, cpus="0-2,64", files=files)).cpus == 4.0


def test_a_quota_may_be_a_fraction(tmp_path: Path) -> None:
    assert read(machine(tmp_path, files={"sys/fs/cgroup/cpu.max": "150000 100000\n"})).cpus == 1.5


def test_a_limit_larger_than_the_machine_is_no_limit(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": HUGE}
    roots = machine(tmp_path, memory_gib=64, cgroup="3:memory:/\n", files=files)
    assert read(roots).memory_gib == 64.0


@pytest.mark.parametrize("text", ["max 100000\n", "", "garbage\n", "100000\n", "100000 0\n"])
def test_no_quota_means_every_allowed_processor(tmp_path: Path, text: str) -> None:
    assert read(machine(tmp_path, cpus="0-7", files={"sys/fs/cgroup/cpu.max": text})).cpus == 8.0


def test_a_system_that_says_nothing_is_not_an_error(tmp_path: Path) -> None:
    nothing = read(Roots(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev"))
    assert nothing.cpus == os.cpu_count()
    assert (nothing.memory_gib, nothing.shm_gib) == (None, None)


def test_version_2_limits_of_the_groups_above_hold_too(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/kubepods/pod1/container/cpu.max": "max 100000\n",
        "sys/fs/cgroup/kubepods/pod1/container/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/kubepods/pod1/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/kubepods/pod1/memory.max": f"{32 * GIB}\n",
        "sys/fs/cgroup/elsewhere/memory.max": "1024\n",
    }
    roots = machine(tmp_path, cgroup="0::/kubepods/pod1/container\n", files=files)
    assert cgroup.limits(roots.sys, roots.proc) == (2.0, 8 * GIB)


def test_version_1_limits_are_read_from_each_controllers_tree(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "600000\n",
        "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{24 * GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": HUGE,
    }
    membership = (
        "11:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/docker/abc\n"
    )
    roots = machine(tmp_path, cgroup=membership, files=files)
    assert cgroup.limits(roots.sys, roots.proc) == (6.0, 24 * GIB)


def test_in_a_container_the_hosts_path_leads_to_the_containers_root(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    membership = "11:memory:/kubepods/burstable/pod1/abc\n4:cpu,cpuacct:/kubepods/burstable/pod1/abc\n"
    roots = machine(tmp_path, cgroup=membership, files=files)
    assert cgroup.limits(roots.sys, roots.proc) == (0.5, 2 * GIB)


def test_a_group_outside_this_namespace_does_not_lead_out_of_the_tree(tmp_path: Path) -> None:
    files = {"sys/fs/memory.max": "1\n", "sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}
    roots = machine(tmp_path, cgroup="0::/../../init.scope\n", files=files)
    assert cgroup.limits(roots.sys, roots.proc)[1] == 4 * GIB


@pytest.mark.parametrize(("ranges", "count"), [("0", 1), ("0-3", 4), ("0-3,8", 5), ("0-55,112-167", 112)])
def test_processor_lists_are_counted(ranges: str, count: int) -> None:
    assert host.count_cpus(ranges) == count


def test_this_machine_agrees_with_the_operating_system() -> None:
    here = host.find("here", sys_root=Path("/sys"), proc_root=Path("/proc"), dev_root=Path("/dev"))
    assert 0 < here.cpus <= len(os.sched_getaffinity(0))
    assert here.memory_gib is not None
    assert 0 < here.memory_gib <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert here.locked_memory_gib == (None if soft == resource.RLIM_INFINITY else soft / GIB)


def test_kills_for_want_of_memory_are_counted_in_either_version_of_cgroups(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    group = tmp_path / "sys" / "fs" / "cgroup"
    (group / "memory").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/kubepods/pod1\n")
    assert cgroup.oom_kills(tmp_path / "sys", tmp_path / "proc") is None
    (group / "memory.events").write_text("low 0\nhigh 3\nmax 7\noom 2\noom_kill 2\n")
    assert cgroup.oom_kills(tmp_path / "sys", tmp_path / "proc") == 2
    (tmp_path / "proc" / "self" / "cgroup").write_text("5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n")
    (group / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert cgroup.oom_kills(tmp_path / "sys", tmp_path / "proc") == 5


def test_a_home_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    """OpenShift and runAsUser: a user without a name, and HOME=/ that is root's."""
    roots = trees.bare_pod(tmp_path)

    def problem(home: str | None) -> str:
        found = host.find("node7", home, sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)
        return found.home_problem

    assert problem(str(tmp_path)) == ""
    assert problem("/proc") == "HOME=/proc: only the kernel can create files in /proc"
    (tmp_path / "file").write_text("")
    assert problem(str(tmp_path / "file")) == f"HOME={tmp_path}/file: {tmp_path}/file is not a folder"


@pytest.mark.parametrize(
    ("cache", "report"),
    [
        (".cache", "github.com/h2oai/h2ogpt/issues/729"),
        (".triton", "github.com/foundation-model-stack/fms-hf-tuning/issues/367"),
    ],
)
def test_a_cache_that_cannot_be_written_in_a_good_home_is_a_problem(
    cache: str, report: str, tmp_path: Path
) -> None:
    """Docker makes ~/.cache root's for a volume below it. Root may write anywhere: a file stands in."""
    roots = trees.bare_pod(tmp_path)
    (tmp_path / cache).write_text("")
    found = host.find("node7", str(tmp_path), sys_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev)
    assert found.home_problem == f"HOME={tmp_path}: {tmp_path}/{cache} is not a folder", report
