"""Target ``slurm``: a batch script with one launcher per node; before the time limit the training can save.

Source: sbatch(1), srun(1). The script holds words that shlex quoted, and #SBATCH values that need no quotes.
"""

from __future__ import annotations

import shlex

from platform_launch.console.languages import translate
from platform_launch.errors import NodesAbsentError, UnfitNodeError
from platform_launch.health.quarantine import FILE_VARIABLE
from platform_launch.jobs import names
from platform_launch.jobs.job import KUBERNETES_ONLY, Job
from platform_launch.jobs.manifest import Notes, comments
from platform_launch.text import Phrase

NOT_USED = (*KUBERNETES_ONLY, "retries")

_NOTES = (
    Phrase(
        "One task per node: the launcher starts the processes of its node. Node 0 is the first host of the "
        "node list, and the port is derived from the job id, so that two jobs do not collide."
    ),
    Phrase("srun needs cpus-per-task again: since Slurm 22.05 it does not inherit it from sbatch."),
    Phrase(
        "After scancel or a preemption Slurm waits KillWait (30 s by default, see scontrol show config). If "
        "the launcher warns that saves take longer, ask the administrator to raise it, or save earlier."
    ),
)

_SIGNAL_NOTES = {
    False: Phrase(
        "Before the time limit Slurm sends USR1 to the launcher of every node, which passes it to the "
        "training."
    ),
    True: Phrase("Before the time limit Slurm sends USR1 to this shell (B:), which also requeues the job."),
}
"""Requeued or not → how the warning arrives."""

CPUS_PER_GPU = 8
"""For a process, its data loaders and NCCL. By default Slurm gives a task a single CPU."""

_COMMENTS = {
    "to_srun": Phrase("srun passes USR1 on to the launcher of every node."),
    "inherited": Phrase("sbatch passes on the variables of the shell that called it"),
    "on_term": Phrase("scancel signals srun and its tasks too: wait until they have ended"),
    "if_unset": Phrase("unless one of the traps has set it"),
    "interrupted": Phrase("a signal interrupts wait, not srun: wait again"),
    "saved": Phrase("The training has saved, and the next run resumes from there: requeue once, not twice."),
    "waiting": Phrase("leave out the nodes that are in quarantine now"),
    "others": Phrase("A node of this run is bad or was lost: try other nodes."),
}
"""Field of the texts below → the comment that it becomes."""

_STAY = "trap : TERM # {on_term}\n"

_TRAPS = """
# {to_srun}
woken=0; unset step late # {inherited}
trap 'woken=1; kill -USR1 "${{step:=$!}}"
  [[ -v late ]] || {{ (sleep {patience_s}; {again}) & late=$!; }}' USR1
trap 'woken=1' TERM # {on_term}

"""

_WAIT_AND_REQUEUE = """\
: "${{step:=$!}}" # {if_unset}
while wait "$step"; code=$?; ((woken)); do woken=0; done # {interrupted}
# {saved}
[[ -v late ]] && kill "$late" && {again} && exit 0
"""

_AGAIN = 'scontrol requeue "$SLURM_JOB_ID"'

# Slurm changes the node list of waiting jobs only, so the job is requeued first. That sends SIGTERM to
# whatever still runs here, and the job does not start again before this script has ended.
_AGAIN_ELSEWHERE = """\
again() ( # {waiting}
  trap '' TERM
  out=$({list_nodes}) || out=
  scontrol requeue "$SLURM_JOB_ID" || exit
  scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="{always}$out"
  exit 0
)
"""

_REQUEUE_ELSEWHERE = """\
# {others}
((code == {absent} || code == {unfit})) && ((${{SLURM_RESTART_COUNT:-0}} < {most})) && again && exit 0
"""
_MOST_ELSEWHERE = 3


def render(job: Job, notes: Notes = ()) -> str:
    """Return the batch script."""
    directives = "".join(f"#SBATCH --{directive}\n" for directive in _directives(job))
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.env)
    if job.quarantine is not None:
        exports += f"export {FILE_VARIABLE}={shlex.quote(job.quarantine)}\n"
    secrets = (
        Phrase("{name}: set it in the shell that calls sbatch; the job inherits it.", name=secret.variable)
        for secret in job.secret_env
    )
    return "".join(
        (
            "#!/bin/bash\n",
            directives,
            comments((*_NOTES, _SIGNAL_NOTES[job.requeue], *notes, *secrets)),
            f"\n{exports}" if exports else "",
            _requeued(job) if job.requeue else f"\n{_filled(_STAY)}\n{_step(job)}\n",
        )
    )


def _requeued(job: Job) -> str:
    """Return the step of a job that goes back into the queue: in the background, so that traps run."""
    elsewhere = job.quarantine is not None
    again = "again" if elsewhere else _AGAIN
    return "".join(
        (
            f"\n{_again_elsewhere(job)}" if elsewhere else "",
            _filled(_TRAPS, patience_s=job.notice_s * 3 // 4, again=again),
            f"{_step(job)} &\n",
            _filled(_WAIT_AND_REQUEUE, again=again),
            _requeue_elsewhere() if elsewhere else "",
            'exit "$code"\n',
        )
    )


def _again_elsewhere(job: Job) -> str:
    listing = shlex.join(job.quarantine_list)
    return _filled(_AGAIN_ELSEWHERE, list_nodes=listing, always="".join(f"{node}," for node in job.exclude))


def _requeue_elsewhere() -> str:
    return _filled(
        _REQUEUE_ELSEWHERE,
        absent=NodesAbsentError.exit_code,
        unfit=UnfitNodeError.exit_code,
        most=_MOST_ELSEWHERE,
    )


def _filled(template: str, **values: object) -> str:
    """Return a piece of the script with its comments in the language of this process."""
    return template.format(**{name: translate(text) for name, text in _COMMENTS.items()}, **values)


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
        # A requeued job keeps its number, and would overwrite the log of its first run.
        "open-mode": "append",
        "signal": f"{'B:' if job.requeue else ''}USR1@{job.notice_s}",
    }
    given = [
        f"{name}={names.check_directive(str(value), name)}"
        for name, value in values.items()
        if value is not None
    ]
    if job.may_lose:
        given.append("no-kill")
    return [*given, "requeue" if job.requeue else "no-requeue"]


def cpus(job: Job) -> int:
    """Return the CPUs per node: as given, or derived from the GPUs."""
    return job.cpus if job.cpus is not None else CPUS_PER_GPU * max(1, job.gpus_per_node)


def _step(job: Job) -> str:
    """Return the srun command."""
    launcher = shlex.join([*job.command, *job.command_arguments])
    # A node may end, or its machine may, and the others go on.
    ends = "--kill-on-bad-exit=0 --no-kill --wait=0" if job.may_lose else "--kill-on-bad-exit=1"
    return f"srun {ends} --cpus-per-task={cpus(job)} \\\n  {launcher}"


def clock(seconds: int) -> str:
    """Return a time in Slurm's form, ``[days-]hours:minutes:seconds``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"
