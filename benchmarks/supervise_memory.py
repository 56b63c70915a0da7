"""Resident memory of the launcher while it supervises: at most 45 MB, beside that of ``accelerate launch``.

The supervising process has imported all that ``platform-launch run`` imports. Its child writes 50 MB of
output and a line without end, then reads the resident memory of its parent. The peer is what stays resident
under ``accelerate launch`` while its script runs.

    python benchmarks/supervise_memory.py
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MB = 45.0

PARENTS_MEMORY = "print(open(f'/proc/{os.getppid()}/status').read())\n"
FLOOD = (
    "import os\n"
    "for _ in range(500): os.write(1, b'a line of output\\n' * 3000)\n"
    "for _ in range(300): os.write(1, b'x' * 100_000)\n"
    "print(flush=True)\n" + PARENTS_MEMORY
)
SUPERVISED = """
import os, sys
from importlib import import_module
from pathlib import Path
for name in ("cli.run", "console", "launch.job", "plan.render"):
    import_module(f"platform_launch.{name}")
for name in ("pynvml", "psutil", "yaml", "rich.console", "rich.panel", "rich.rule"):
    import_module(name)
from platform_launch.supervise import Command, Supervisor
command = Command((sys.executable, "-c", sys.argv[2]), dict(os.environ))
sys.exit(Supervisor(command, log_path=Path(sys.argv[1]), prefix="[node 1] ").run().exit_code)
"""


def resident_mb(argv: list[str]) -> tuple[float, float]:
    """Return resident and peak memory in MB from what the child said of its parent."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    found = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", done.stdout))
    return int(found["VmRSS"]) * 1024 / 1e6, int(found["VmHWM"]) * 1024 / 1e6


def main() -> int:
    """Print both and the ratio; fail above the limit."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, peak = resident_mb([sys.executable, "-c", SUPERVISED, str(Path(folder, "train.log")), FLOOD])
        script = Path(folder, "script.py")
        script.write_text("import os\n" + PARENTS_MEMORY)
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
        peers, _ = resident_mb([*launch, "--num_machines", "1", "--mixed_precision", "no", str(script)])
    print(f"supervisor         {ours:6.1f} MB resident, {peak:.1f} MB at its peak (limit {LIMIT_MB:g})")
    print(f"accelerate launch  {peers:6.1f} MB resident")
    print(f"ratio              {ours / peers:6.2f}")
    return 0 if peak <= LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
