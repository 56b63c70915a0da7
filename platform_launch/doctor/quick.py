"""The fast checks of one node: no child process, no import of torch, a few hundredths of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from platform_launch.doctor.checks import installation, memory, names, node, rdma, storage, variables
from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding

Check = Callable[[Facts], Iterator[Finding]]

# In the order in which a reader fixes things: the request, the installation, the machine.
CHECKS: tuple[Check, ...] = (
    variables.unknown_interfaces,
    variables.contradictions,
    variables.debugging_left_on,
    variables.too_many_threads,
    installation.missing_packages,
    installation.shadowed_packages,
    installation.user_site,
    installation.other_environment,
    installation.torch_and_driver,
    installation.unsafe_loading,
    node.master_port,
    node.clock,
    node.devices,
    node.build_locks,
    storage.free_space,
    memory.shared_memory,
    memory.locked_memory,
    memory.memory_left,
    names.own_name,
    names.master_name,
    names.reverse_lookup,
    rdma.ports_down,
    rdma.gids,
    rdma.unknown_hcas,
    rdma.far_adapters,
)

NAMES = tuple(
    f"{check.__module__.rpartition('.')[2]}: {check.__name__.replace('_', ' ')}" for check in CHECKS
)
"""What :func:`examine` looks at, in words: ``memory: locked memory``."""


def examine(facts: Facts) -> list[Finding]:
    """Return what every check finds beside the plan's own warnings."""
    return [finding for found in examine_each(facts).values() for finding in found]


def examine_each(facts: Facts) -> dict[str, list[Finding]]:
    """Return what each check finds, by its name."""
    return {name: list(check(facts)) for name, check in zip(NAMES, CHECKS, strict=True)}
