"""Target ``slurm``: a batch script with one launcher a node; the time limit becomes a checkpoint.

Source: sbatch(1), srun(1). The script holds words that shlex quoted, and #SBATCH values that need no quotes.
"""

from __future__ import annotations

import shlex

from platform_launch.jobs import names
from platform_launch.jobs.job import Job
from platform_launch.jobs.manifest import comment

NOT_USED = (
    "image", "namespace", "volumes", "shm_gib", "rdma", "node_selector", "tolerations", "retries",
)  # fmt: skip

_NOTES = """\
- One task a node: the launcher starts that node's processes itself. It takes the first host of
  the node list as address, and a port derived from the job id, so that two jobs do not meet.
"""

_SPARE_CPUS = 2
"""Besides one a GPU: for the launcher and the system. Slurm gives a task a single CPU when nobody asks."""

_TRAPS = """\
# Slurm wakes this shell ahead of the time limit; srun hands USR1 on to the launcher of every node.
woken=0; unset step late # sbatch hands on the variables of who called it
trap 'woken=1; kill -USR1 "${{step:=$!}}"{requeue}' USR1
trap 'woken=1' TERM # scancel tells srun and the tasks itself: stay until they have ended
"""

_REQUEUE_LATE = '; [[ -v late ]] || {{ (sleep {patience_s}; scontrol requeue "$SLURM_JOB_ID") & late=$!; }}'

_WAIT = """\
: "${step:=$!}" # a trap between these two lines has named it already
while wait "$step"; code=$?; ((woken)); do woken=0; done # a signal ends wait, not srun: wait again
"""

_REQUEUE = """\
# The training has saved what it has: the next run goes on from there. Nothing may requeue that one.
[[ -v late ]] && kill "$late" && scontrol requeue "$SLURM_JOB_ID" && exit 0
"""


def render(job: Job, notes: str = "") -> str:
    """Return the batch script."""
    directives = "".join(f"#SBATCH --{directive}\n" for directive in _directives(job))
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.env)
    secrets = "".join(
        f"- {secret.variable}: set it where you call sbatch, the job takes it over.\n"
        for secret in job.secret_env
    )
    late = _REQUEUE_LATE.format(patience_s=job.notice_s * 3 // 4) if job.requeue else ""
    return "".join(
        (
            "#!/bin/bash\n",
            directives,
            comment(_NOTES + notes + secrets),
            f"\n{exports}" if exports else "",
            f"\n{_TRAPS.format(requeue=late)}\n",
            _step(job),
            _WAIT,
            _REQUEUE if job.requeue else "",
            'exit "$code"\n',
        )
    )


def _directives(job: Job) -> list[str]:
    values = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": _cpus(job),
        "partition": job.queue,
        "account": job.account,
        "gres": f"gpu:{job.gpus_per_node}" if job.gpus_per_node else None,
        "mem": None if job.memory_gib is None else f"{job.memory_gib}G",
        "time": None if job.time_limit_s is None else clock(job.time_limit_s),
        "output": "%x-%j.out",
        # A requeued job keeps its number, and would write over the log of its first run.
        "open-mode": "append",
        "signal": f"B:USR1@{job.notice_s}",
    }
    given = [
        f"{name}={names.check_directive(str(value), name)}"
        for name, value in values.items()
        if value is not None
    ]
    return [*given, "requeue" if job.requeue else "no-requeue"]


def _cpus(job: Job) -> int:
    return job.cpus if job.cpus is not None else job.gpus_per_node + _SPARE_CPUS


def _step(job: Job) -> str:
    """Return the srun line; it repeats cpus-per-task, which srun has not taken from sbatch since 22.05."""
    launcher = shlex.join(["/bin/bash", job.entrypoint, *job.command_arguments])
    return f"srun --kill-on-bad-exit=1 --cpus-per-task={_cpus(job)} \\\n  {launcher} &\n"


def clock(seconds: int) -> str:
    """Return a time in Slurm's form, ``[days-]hours:minutes:seconds``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"
