"""What a running job is doing: collectives, stacks, progress.

dumps        a flight recorder's dump → one rank's trace
collectives  traces of all ranks → which ranks the others wait for
hook/        what makes the job's processes observable; it runs under their own Python
"""

from pathlib import Path

HOOK = Path(__file__).resolve().parent / "hook"
# The variable in which the hook finds the private folder.
FOLDER_VARIABLE = "PLATFORM_LAUNCH_OBSERVE"
# The prefix of the file to which a rank that runs out of GPU memory writes its allocations; its rank and
# ``.pickle`` follow.
SNAPSHOT_VARIABLE = "PLATFORM_LAUNCH_MEMORY_SNAPSHOT"
# The CPUs of each local rank, as the kernel lists them, with semicolons between the ranks.
BIND_VARIABLE = "PLATFORM_LAUNCH_BIND"
