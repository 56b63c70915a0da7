"""Processors, memory and limits of this machine or container."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from platform_launch.hardware import cgroup, storage
from platform_launch.hardware.kernel_files import fields, memory_bytes, text
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_GIB = 1024**3
# Caches of torch, Hugging Face, Triton and CUDA. They may be read-only in a writable home: Docker creates the
# parents of a mount as root, such as ~/.cache for ~/.cache/huggingface.
_CACHES = (".cache", ".triton", ".nv")


@dataclass(frozen=True)
class Host:
    """The resources of this node. Fields are None if unknown.

    ``cpus`` is the number of processors this process may use: the smaller of its affinity mask and the
    cgroup's quota (which may be a fraction). ``memory_gib`` is the cgroup's limit or the machine's memory.
    ``locked_memory_gib`` is RLIMIT_MEMLOCK; None means unlimited. ``home_problem`` is why nothing can be
    written in the user's home, empty if something can.
    """

    hostname: str
    cpus: float
    memory_gib: float | None
    shm_gib: float | None
    locked_memory_gib: float | None
    imex_channel: bool = False
    home_problem: str = ""


def find(hostname: str, home: str | None = None, *, sys_root: Path, proc_root: Path, dev_root: Path) -> Host:
    """Return the resources of this process on the machine ``hostname``; ``home`` is HOME's value."""
    quota, limit_bytes = cgroup.limits(sys_root, proc_root)
    cpus = float(_allowed_cpus(proc_root))
    known_bytes = [size for size in (memory_bytes(proc_root, "MemTotal"), limit_bytes) if size]
    return Host(
        hostname=hostname,
        cpus=cpus if quota is None else min(cpus, quota),
        memory_gib=min(known_bytes) / _GIB if known_bytes else None,
        shm_gib=_size_gib(dev_root / "shm"),
        locked_memory_gib=_locked_memory_gib(),
        imex_channel=any(dev_root.glob("nvidia-caps-imex-channels/channel*")),
        home_problem=_home_problem(home),
    )


def _home_problem(home: str | None) -> str:
    """Return why the home can hold no caches: it is / if the platform chooses the user id (OpenShift)."""
    if home is None:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return Phrase("HOME is not set, and user {uid} has no home", uid=os.getuid())
    problems = (storage.read(Path(home, folder)).problem for folder in ("", *_CACHES))
    problem = next(filter(None, problems), "")
    return Phrase("HOME={home}: {problem}", home=home, problem=problem) if problem else ""


def _allowed_cpus(proc_root: Path) -> int:
    """Count the processors of the affinity mask, e.g. ``Cpus_allowed_list: 0-3,8``."""
    ranges = fields(proc_root / "self/status").get("Cpus_allowed_list")
    return count_cpus(ranges) if ranges else os.cpu_count() or 1


def count_cpus(ranges: str) -> int:
    """Count a kernel list of processors: ``0-3,8`` is 5."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in bounds)


def _size_gib(folder: Path) -> float | None:
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return None
    return filesystem.f_blocks * filesystem.f_frsize / _GIB


def _locked_memory_gib() -> float | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft / _GIB


_CAP_IPC_LOCK = 14  # capabilities(7): memory may be locked beyond RLIMIT_MEMLOCK


def available_gib(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> float | None:
    """Return what new processes can use: the machine's available memory or the control group's rest."""
    free = [cgroup.spare_memory_bytes(sys_root, proc_root), memory_bytes(proc_root, "MemAvailable")]
    known = [size for size in free if size is not None]
    return min(known) / _GIB if known else None


def may_lock_any(proc_root: Path = Path("/proc")) -> bool:
    """Return whether this process is exempt from the limit on locked memory."""
    effective = fields(proc_root / "self/status").get("CapEff", "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)


# Flags of /proc/cpuinfo for instructions GCC may choose by itself; all others describe virtual
# memory, interrupts, power or mitigations (Linux: arch/x86/include/asm/cpufeatures.h; GCC: x86 options).
_X86_INSTRUCTIONS = (
    "abm", "adx", "aes", "bmi1", "bmi2", "cmpccxadd", "f16c", "fma", "fma4", "gfni", "lahf_lm", "movbe",
    "pclmulqdq", "pni", "popcnt", "rdpid", "rdrand", "rdseed", "sha_ni", "sse4_1", "sse4_2", "sse4a", "ssse3",
    "tbm", "vaes", "vpclmulqdq", "xop",
)  # fmt: skip
_X86_FAMILIES = ("avx", "amx", "apx")


def instructions(proc_root: Path = Path("/proc")) -> frozenset[str]:
    """Return the kernel's names of the instruction sets; empty if the kernel does not report them."""
    for line in text(proc_root / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = value.split()
            return frozenset(f for f in flags if f in _X86_INSTRUCTIONS or f.startswith(_X86_FAMILIES))
        if name.strip() == "Features":  # Arm lists nothing else
            return frozenset(value.split())
    return frozenset()
