"""Memory of the node: shared, locked, and available."""

from __future__ import annotations

import math
from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, warning
from platform_launch.text import Phrase

# Container runtimes default to 64 MiB. NCCL takes about 10 MB for each GPU and its neighbours; the DataLoader
# workers' share is added if the config tells their number.
_ENOUGH_SHM_GIB = 1.0
# NCCL pins its buffers for each channel and peer; clusters give "unlimited".
_ENOUGH_LOCKED_GIB = 1.0
# `import torch` and accelerate alone hold 0.3 GiB in each process; a model comes on top.
_ENOUGH_EACH_GIB = 1.0


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Report a small /dev/shm: NCCL and DataLoader workers die of a bus error when it is full."""
    shm, nproc = facts.storage.get("shm"), facts.plan.topology.nproc_per_node or 1
    batches_gib = nproc * (facts.plan.training.loader_gib or 0.0)
    needed_gib = _ENOUGH_SHM_GIB + batches_gib
    if shm is None or (nproc == 1 and not facts.has_gpus) or shm.free_gib >= needed_gib:
        return
    used = shm.size_gib - shm.free_gib
    left_behind = used > 0.5 * shm.size_gib
    size = max(16, math.ceil(2 * needed_gib))
    give_more = Phrase(
        "give the container more: docker --shm-size={size}g, or in Kubernetes a memory emptyDir there",
        size=size,
    )
    if batches_gib:
        give_more = Phrase(
            "{more}; or lower num_workers or batch_size in the training config", more=give_more
        )
    yield warning(
        "shm-small",
        Phrase(
            "{free} MiB are free in {folder} of {size} MiB{needed}: NCCL and DataLoader workers share data "
            "there, and die of 'Bus error' or 'No space left on device'",
            free=f"{shm.free_gib * 1024:.0f}",
            folder=shm.folder,
            size=f"{shm.size_gib * 1024:.0f}",
            needed=Phrase(", and this job needs {gib} GiB", gib=f"{needed_gib:.1f}") if batches_gib else "",
        ),
        str(shm.folder),
        Phrase("remove leftovers of earlier runs from {folder}", folder=shm.folder)
        if left_behind
        else give_more,
    )


def locked_memory(facts: Facts) -> Iterator[Finding]:
    """Report a low limit of locked memory, which InfiniBand and RoCE need."""
    limit_gib = facts.plan.hardware.host.locked_memory_gib
    if (
        not facts.ports_in_use
        or facts.exempt_from_memlock
        or limit_gib is None
        or limit_gib >= _ENOUGH_LOCKED_GIB
    ):
        return
    yield warning(
        "memlock-low",
        Phrase(
            "this process may lock {limit} MiB of memory, and this node has active RDMA ports: NCCL stops "
            "with 'ibv_reg_mr … Cannot allocate memory'",
            limit=f"{limit_gib * 1024:.3g}",
        ),
        "ulimit -l",
        "raise the limit (docker --ulimit memlock=-1), or grant IPC_LOCK to the container",
    )


def memory_left(facts: Facts) -> Iterator[Finding]:
    """Report too little available memory, because of other processes or a container's limit."""
    free, nproc = facts.available_memory_gib, facts.plan.topology.nproc_per_node or 1
    if free is not None and free < _ENOUGH_EACH_GIB * nproc:
        yield warning(
            "memory-low",
            Phrase(
                "{free} GiB of memory are left on this node, too little for its processes ({count})",
                free=f"{free:.1f}",
                count=nproc,
            ),
            "memory",
            "stop other processes on this node, or raise the container's memory limit",
        )
