"""What binding to NUMA nodes gains: processes that copy memory, bound as ``--bind node`` binds them, and not.

One process per core copies its own buffer for a while, as DataLoader workers do. They are compared with the
same processes as the kernel places them, and with processes whose memory is on the other node. With one NUMA
node there is nothing to compare.

    python benchmarks/binding.py [--seconds 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from platform_launch.hardware import numa  # noqa: E402
from platform_launch.hardware.numa import Numa, cpu_ranges  # noqa: E402
from platform_launch.observe import BIND_VARIABLE, HOOK  # noqa: E402

# Both buffers get their memory where the process is bound first, and are copied where it is bound then.
WORKER = """
import os, sys, time
source = bytearray(os.urandom(1 << 20)) * 256
target = memoryview(bytearray(source))
if sys.argv[2]:
    os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[2].split(",")})
copied, start = 0, time.monotonic()
while time.monotonic() - start < float(sys.argv[1]):
    target[:] = source
    copied += len(source)
print(copied / (time.monotonic() - start) / 1e9)
"""


def gigabytes_per_s(bound: list[str], moved: list[str], seconds: float) -> float:
    """Run a process for each entry, all at once; return what they copied together."""
    started = []
    for rank, moves in enumerate(moved):
        env = {**os.environ, "PYTHONPATH": str(HOOK), "LOCAL_RANK": str(rank)}
        env |= {BIND_VARIABLE: ";".join(bound)} if bound else {}
        command = [sys.executable, "-c", WORKER, str(seconds), moves]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    return sum(float(process.communicate(timeout=seconds + 120)[0]) for process in started)


def compare(machine: Numa, seconds: float) -> dict[str, float]:
    """Return GB/s of all processes bound near their memory, not bound, and bound far from it."""
    homes = [node for node in machine.nodes for _ in node.cores]
    others = {node.number: machine.nodes[index - 1] for index, node in enumerate(machine.nodes)}
    near = [cpu_ranges(node.cpus) for node in homes]
    far = [",".join(map(str, others[node.number].cpus)) for node in homes]
    stay = [""] * len(homes)
    return {
        "bound": gigabytes_per_s(near, stay, seconds),
        "not bound": gigabytes_per_s([], stay, seconds),
        "memory on the other node": gigabytes_per_s(near, far, seconds),
    }


def main() -> int:
    """Print each figure and its ratio to processes that are not bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    machine = numa.find((), sys_root=Path("/sys"), proc_root=Path("/proc"))
    if len(machine.nodes) < 2:
        print("nothing to compare: this process may use the CPUs of one NUMA node only")
        return 0
    found = compare(machine, seconds)
    for name, value in found.items():
        print(f"{name:26} {value:8.1f} GB/s  ratio {value / found['not bound']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
