"""Warnings about a job before it is submitted, and the defaults that were chosen for it."""

from __future__ import annotations

from pathlib import Path

from platform_launch import jobs
from platform_launch.confidential import looks_secret, secret_arguments
from platform_launch.errors import shown
from platform_launch.jobs import pod, slurm
from platform_launch.jobs.job import Job
from platform_launch.text import Phrase

# From here on, waiting for NCCL over TCP costs more than an RDMA network.
_GPUS_THAT_WANT_RDMA = 16
# The process itself, its DataLoader workers and NCCL's proxy thread.
_FEWEST_CPUS_PER_GPU = 4
# A shorter limit is more likely H:MM, which is read as minutes and seconds.
_SHORT_LIMIT_S = 600


def defaults(job: Job, target: str) -> list[str]:
    """Return the values that were chosen because the job does not set them."""
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
    elif job.gpus_per_node:
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
    """Return what the scheduler would accept although the job is likely to fail or to idle."""
    return [
        *jobs.unused_notes(job, target),
        *_placement(job, target),
        *_time(job, target),
        *_secrets(job, target),
    ]


def _placement(job: Job, target: str) -> list[str]:
    found: list[str] = []
    gpus = job.nodes * job.gpus_per_node
    if target == "slurm" and job.entrypoint.startswith("/") and not Path(job.entrypoint).is_file():
        found.append(
            Phrase(
                "{entrypoint} does not exist here: it must exist on every node",
                entrypoint=shown(job.entrypoint),
            )
        )
    if target != "slurm" and job.nodes > 1 and gpus >= _GPUS_THAT_WANT_RDMA and not job.rdma:
        found.append(
            Phrase(
                "{nodes} × {gpus} GPUs without an RDMA resource: NCCL will use TCP. If the cluster has RDMA, "
                "add --rdma RESOURCE (kubectl describe node lists it next to {gpu_resource})",
                nodes=job.nodes,
                gpus=job.gpus_per_node,
                gpu_resource=job.gpu_resource,
            )
        )
    if job.script is not None and not job.script.startswith("/"):
        where = Phrase(
            "the folder where you call sbatch" if target == "slurm" else "the image's working directory"
        )
        found.append(
            Phrase("the script's path is relative to {where}; an absolute path is safer", where=where)
        )
    if job.cpus is not None and job.gpus_per_node and job.cpus < _FEWEST_CPUS_PER_GPU * job.gpus_per_node:
        found.append(
            Phrase(
                "{cpus} CPUs for {gpus} GPUs: expected at least {fewest} per GPU, for its process, data "
                "loading and NCCL",
                cpus=job.cpus,
                gpus=job.gpus_per_node,
                fewest=_FEWEST_CPUS_PER_GPU,
            )
        )
    if target != "slurm" and not job.gpus_per_node and job.cpus is None:
        found.append(
            Phrase("no GPUs and no --cpus: the pods request no CPUs and may be placed on a busy node")
        )
    if (
        any(name.startswith("hugepages-") for name, _ in job.resources)
        and not job.gpus_per_node
        and job.cpus is None
        and job.memory_gib is None
    ):
        found.append(Phrase("hugepages without --cpus or --memory-gib: Kubernetes rejects such pods"))
    return found


def _time(job: Job, target: str) -> list[str]:
    found: list[str] = []
    if job.time_limit_s is not None and job.time_limit_s < _SHORT_LIMIT_S:
        found.append(
            Phrase(
                "the time limit is only {limit} (hours:minutes:seconds)", limit=slurm.clock(job.time_limit_s)
            )
        )
    if target in ("jobset", "trainjob") and job.time_limit_s is not None and job.retries and not job.runtime:
        found.append(
            Phrase(
                "{target} applies --time to each attempt: with {retries} retries the job may run {times} "
                "times as long",
                target=target,
                retries=job.retries,
                times=job.retries + 1,
            )
        )
    if target == "pytorchjob" and job.time_limit_s is None:
        found.append(
            Phrase(
                "pytorchjob restarts pods that a signal killed (exit codes of 128 and above) without limit: "
                "set --time"
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
                    "leave it out, and set it in the shell that calls sbatch "
                    "(--secret-env {name}=SECRET:KEY adds a comment about it to the file)",
                    name=name,
                )
                if target == "slurm"
                else Phrase("keep it in a Secret: --secret-env {name}=SECRET:KEY", name=name)
            )
            found.append(
                Phrase(
                    "env {name} looks like a secret, and the file would show it: {keep}", name=name, keep=keep
                )
            )
    found.extend(
        Phrase(
            "{option} looks like a secret, and the file and ps would show it: use a variable (--secret-env)",
            option=called,
        )
        for called in secret_arguments(job.command_arguments)
    )
    return found
