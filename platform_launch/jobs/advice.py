"""What to know about a job before it is submitted."""

from __future__ import annotations

from pathlib import Path

from platform_launch import jobs
from platform_launch.confidential import looks_secret, secret_arguments
from platform_launch.errors import shown
from platform_launch.jobs import pod, slurm
from platform_launch.jobs.job import Job
from platform_launch.text import Phrase

# From here on NCCL over sockets costs more than the GPUs that it keeps waiting.
_GPUS_THAT_WANT_RDMA = 16
# A process's own thread, its DataLoader workers and NCCL's proxy.
_FEWEST_CPUS_PER_GPU = 4


def defaults(job: Job, target: str) -> list[str]:
    """Return what was chosen because the job does not give it."""
    found: list[str] = []
    if target == "slurm":
        if job.cpus is None:
            found.append(
                Phrase(
                    "--cpus-per-task is {cpus}, {each} per process; --cpus sets another number",
                    cpus=slurm.cpus(job),
                    each=slurm.CPUS_PER_GPU,
                )
            )
    elif job.gpus_per_node and not job.runtime:
        if job.cpus is None:
            found.append(
                Phrase(
                    "no --cpus: each pod requests {total} CPUs, {each} per GPU, without a limit",
                    total=pod.CPUS_PER_GPU * job.gpus_per_node,
                    each=pod.CPUS_PER_GPU,
                )
            )
        if job.memory_gib is None:
            found.append(
                Phrase(
                    "no --memory-gib: each pod requests {total} GiB, {each} per GPU, without a limit",
                    total=pod.MEMORY_GIB_PER_GPU * job.gpus_per_node,
                    each=pod.MEMORY_GIB_PER_GPU,
                )
            )
    return found


def warnings(job: Job, target: str) -> list[str]:
    """Return what the scheduler accepts silently although it is likely to fail or idle later."""
    return [*_unused(job, target), *_placement(job, target), *_restarts(job, target), *_secrets(job, target)]


def _unused(job: Job, target: str) -> list[str]:
    left_out = jobs.unused(job, target)
    return (
        [Phrase("{target} has no place for: {left_out}", target=target, left_out=", ".join(left_out))]
        if left_out
        else []
    )


def _placement(job: Job, target: str) -> list[str]:
    found: list[str] = []
    gpus = job.nodes * job.gpus_per_node
    if target == "slurm" and job.entrypoint.startswith("/") and not Path(job.entrypoint).is_file():
        found.append(
            Phrase("{entrypoint} is not here: it must be on every node", entrypoint=shown(job.entrypoint))
        )
    if target != "slurm" and job.nodes > 1 and gpus >= _GPUS_THAT_WANT_RDMA and not job.rdma:
        found.append(
            Phrase(
                "{nodes} × {gpus} GPUs and no RDMA resource: NCCL would use sockets; "
                "--rdma names the cluster's (kubectl describe node shows it beside nvidia.com/gpu)",
                nodes=job.nodes,
                gpus=job.gpus_per_node,
            )
        )
    if job.script is not None and not job.script.startswith("/"):
        where = Phrase("the folder of sbatch" if target == "slurm" else "the image's working directory")
        found.append(
            Phrase("the path of the script is relative to {where}: an absolute one is safer", where=where)
        )
    if job.cpus is not None and job.gpus_per_node and job.cpus < _FEWEST_CPUS_PER_GPU * job.gpus_per_node:
        found.append(
            Phrase(
                "{cpus} CPUs feed {gpus} GPUs: expected {fewest} or more for each, "
                "for its process, data loading and NCCL",
                cpus=job.cpus,
                gpus=job.gpus_per_node,
                fewest=_FEWEST_CPUS_PER_GPU,
            )
        )
    if target != "slurm" and not job.gpus_per_node and job.cpus is None:
        found.append(Phrase("no GPUs and no --cpus: the pods request nothing, and may land on a full node"))
    if (
        any(name.startswith("hugepages-") for name, _ in job.resources)
        and not job.gpus_per_node
        and job.cpus is None
        and job.memory_gib is None
    ):
        found.append(Phrase("hugepages without --cpus and --memory-gib: Kubernetes refuses such a pod"))
    return found


def _restarts(job: Job, target: str) -> list[str]:
    found: list[str] = []
    if target in ("jobset", "trainjob") and job.time_limit_s is not None and job.retries and not job.runtime:
        found.append(
            Phrase(
                "{target} counts --time for each attempt: with {retries} retries the job may run {times} "
                "times as long",
                target=target,
                retries=job.retries,
                times=job.retries + 1,
            )
        )
    if target == "pytorchjob" and job.time_limit_s is None:
        found.append(
            Phrase(
                "pytorchjob restarts pods that a signal ended (exit codes above 128) without limit; "
                "--time ends that"
            )
        )
    return found


def _secrets(job: Job, target: str) -> list[str]:
    """Name what looks like a secret in the file, never its value."""
    found: list[str] = []
    for name, value in job.env:
        if looks_secret(name, value):
            keep = (
                Phrase(
                    "leave it out, and set it where you call sbatch (--secret-env {name}=SECRET:KEY says so)",
                    name=name,
                )
                if target == "slurm"
                else Phrase("keep it in a Secret: --secret-env {name}=SECRET:KEY", name=name)
            )
            found.append(
                Phrase("env {name} looks like a secret, and the file shows it: {keep}", name=name, keep=keep)
            )
    found.extend(
        Phrase(
            "{option} looks like a secret, and the file and ps show it: make it a variable (--secret-env)",
            option=called,
        )
        for called in secret_arguments(job.command_arguments)
    )
    return found
