"""What a scheduler takes without a word, and somebody regrets hours later."""

from __future__ import annotations

from platform_launch.jobs.job import Job
from platform_launch.text import Phrase

# From here on NCCL over sockets costs more than the GPUs that it keeps waiting.
_GPUS_THAT_WANT_RDMA = 16
# A process's own thread, its DataLoader workers and NCCL's proxy.
_CPUS_PER_GPU = 4


def advice(job: Job, target: str) -> list[str]:
    """Return what to think over before a job is submitted."""
    found: list[str] = []
    gpus = job.nodes * job.gpus_per_node
    if target != "slurm" and job.nodes > 1 and gpus >= _GPUS_THAT_WANT_RDMA and job.rdma is None:
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
    if job.cpus is not None and job.gpus_per_node and job.cpus < _CPUS_PER_GPU * job.gpus_per_node:
        found.append(
            Phrase(
                "{cpus} CPUs feed {gpus} GPUs: expected {fewest} or more for each, "
                "for its process, data loading and NCCL",
                cpus=job.cpus,
                gpus=job.gpus_per_node,
                fewest=_CPUS_PER_GPU,
            )
        )
    return found
