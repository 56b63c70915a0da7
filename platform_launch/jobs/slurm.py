"""Target ``slurm``: a batch script with one launcher per node; the time limit becomes a checkpoint.

Source: sbatch(1), srun(1). The script holds words that shlex quoted, and #SBATCH values that need no quotes.
"""

from __future__ import annotations

import shlex

from platform_launch.errors import NodesAbsentError, UnfitNodeError
from platform_launch.health.quarantine import FILE_VARIABLE
from platform_launch.jobs import names
from platform_launch.jobs.job import KUBERNETES_ONLY, Job
from platform_launch.jobs.manifest import comment

NOT_USED = (*KUBERNETES_ONLY, "retries")

_NOTES = """\
- One task per node: the launcher starts that node's processes itself. It takes the first host of
  the node list as address, and a port derived from the job id, so that two jobs do not collide.
- cpus-per-task is repeated for srun, which has not inherited it from sbatch since Slurm 22.05.
- After scancel or preemption Slurm waits KillWait (30 s by default, scontrol show config). If the
  launcher warns that a save takes longer, ask the administrator to raise it, or save earlier.
"""

_SIGNAL_NOTES = {
    False: "- Ahead of the time limit Slurm sends USR1 to every launcher, and that to the training.\n",
    True: "- Slurm sends USR1 to this shell ahead of the time limit (B:), which requeues the job as well.\n",
}
"""Requeued or not → how the warning arrives."""

CPUS_PER_GPU = 8
"""For a process, its data loaders and NCCL. Slurm gives a task a single CPU when nobody asks for more."""

_STAY = "trap : TERM # scancel signals srun and the tasks itself: wait until they have ended\n"

_TRAPS = """
# srun hands USR1 on to the launcher of every node.
woken=0; unset step late # sbatch passes on the variables of the shell that called it
trap 'woken=1; kill -USR1 "${{step:=$!}}"
  [[ -v late ]] || {{ (sleep {patience_s}; {again}) & late=$!; }}' USR1
trap 'woken=1' TERM # scancel signals srun and the tasks itself: wait until they have ended

"""

_WAIT_AND_REQUEUE = """\
: "${{step:=$!}}" # unless a trap between these two lines has set it
while wait "$step"; code=$?; ((woken)); do woken=0; done # a signal ends wait, not srun: wait again
# The training has saved: the next run resumes from there. Nothing may requeue that one.
[[ -v late ]] && kill "$late" && {again} && exit 0
"""

_AGAIN = 'scontrol requeue "$SLURM_JOB_ID"'

# Slurm takes another list of nodes only for a job that waits: after the requeue, which ends whatever still
# runs here with SIGTERM. The job does not start again before this script has ended.
_AGAIN_ELSEWHERE = """\
again() ( # without the nodes that are in quarantine by now
  trap '' TERM
  out=$({list_nodes}) || out=
  scontrol requeue "$SLURM_JOB_ID" || exit
  scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="{always}$out"
  exit 0
)
"""

_REQUEUE_ELSEWHERE = """\
# A node of this run is bad or was lost: others may do.
((code == {absent} || code == {unfit})) && ((${{SLURM_RESTART_COUNT:-0}} < {most})) && again && exit 0
"""
_MOST_ELSEWHERE = 3


def render(job: Job, notes: str = "") -> str:
    """Return the batch script."""
    directives = "".join(f"#SBATCH --{directive}\n" for directive in _directives(job))
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.env)
    if job.quarantine is not None:
        exports += f"export {FILE_VARIABLE}={shlex.quote(job.quarantine)}\n"
    secrets = "".join(
        f"- {secret.variable}: set it where you call sbatch, the job inherits it.\n"
        for secret in job.secret_env
    )
    return "".join(
        (
            "#!/bin/bash\n",
            directives,
            comment(_NOTES + _SIGNAL_NOTES[job.requeue] + notes + secrets),
            f"\n{exports}" if exports else "",
            _requeued(job) if job.requeue else f"\n{_STAY}\n{_step(job)}\n",
        )
    )


def _requeued(job: Job) -> str:
    """Return the step of a job that goes back into the queue: in the background, so that traps run."""
    elsewhere = job.quarantine is not None
    again = "again" if elsewhere else _AGAIN
    return "".join(
        (
            f"\n{_again_elsewhere(job)}" if elsewhere else "",
            _TRAPS.format(patience_s=job.notice_s * 3 // 4, again=again),
            f"{_step(job)} &\n",
            _WAIT_AND_REQUEUE.format(again=again),
            _requeue_elsewhere() if elsewhere else "",
            'exit "$code"\n',
        )
    )


def _again_elsewhere(job: Job) -> str:
    listing = shlex.join(job.quarantine_list)
    return _AGAIN_ELSEWHERE.format(list_nodes=listing, always="".join(f"{node}," for node in job.exclude))


def _requeue_elsewhere() -> str:
    return _REQUEUE_ELSEWHERE.format(
        absent=NodesAbsentError.exit_code, unfit=UnfitNodeError.exit_code, most=_MOST_ELSEWHERE
    )


def _directives(job: Job) -> list[str]:
    values = {
        "job-name": job.name,
        "nodes": job.started,
        "ntasks-per-node": 1,
        "cpus-per-task": cpus(job),
        "partition": job.queue,
        "account": job.account,
        "gres": f"gpu:{job.gpus_per_node}" if job.gpus_per_node else None,
        "exclude": ",".join(job.exclude) or None,
        "mem": None if job.memory_gib is None else f"{job.memory_gib}G",
        "time": None if job.time_limit_s is None else clock(job.time_limit_s),
        "output": "%x-%j.out",
        # A requeued job keeps its number, and would write over the log of its first run.
        "open-mode": "append",
        "signal": f"{'B:' if job.requeue else ''}USR1@{job.notice_s}",
    }
    given = [
        f"{name}={names.check_directive(str(value), name)}"
        for name, value in values.items()
        if value is not None
    ]
    if job.spares:
        given.append("no-kill")
    return [*given, "requeue" if job.requeue else "no-requeue"]


def cpus(job: Job) -> int:
    """Return the CPUs per node: as given, or derived from the GPUs."""
    return job.cpus if job.cpus is not None else CPUS_PER_GPU * max(1, job.gpus_per_node)


def _step(job: Job) -> str:
    """Return the srun command."""
    launcher = shlex.join([*job.command, *job.command_arguments])
    # With spares a node may end, or its machine may, and the others go on.
    ends = "--kill-on-bad-exit=0 --no-kill --wait=0" if job.spares else "--kill-on-bad-exit=1"
    return f"srun {ends} --cpus-per-task={cpus(job)} \\\n  {launcher}"


def clock(seconds: int) -> str:
    """Return a time in Slurm's form, ``[days-]hours:minutes:seconds``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"
