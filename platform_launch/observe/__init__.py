"""What a running job is doing: collectives, stacks, progress.

dumps        a flight recorder's dump → one rank's trace
collectives  traces of all ranks → who waits for whom
hook/        what opens a training's processes to questions, under their own Python
"""

from pathlib import Path

HOOK = Path(__file__).resolve().parent / "hook"
# The variable in which the hook finds the private folder.
FOLDER_VARIABLE = "PLATFORM_LAUNCH_OBSERVE"
# Where a rank that runs out of GPU memory writes what holds it: its rank and ``.pickle`` follow.
SNAPSHOT_VARIABLE = "PLATFORM_LAUNCH_MEMORY_SNAPSHOT"
# The CPUs of each local rank, as the kernel lists them, with semicolons between the ranks.
BIND_VARIABLE = "PLATFORM_LAUNCH_BIND"
