"""The facts of one node before a launch: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from platform_launch.environment import Environment
from platform_launch.hardware import HcaPort
from platform_launch.hardware.names import ResolverAnswer
from platform_launch.hardware.packages import Module, TorchBuild
from platform_launch.hardware.ports import Port
from platform_launch.hardware.storage import BuildLock, Storage
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.values import dataclass

if TYPE_CHECKING:
    from platform_launch.health.reading import DeviceReading


@dataclass(frozen=True)
class Installation:
    """The job's interpreter. ``active`` is the environment that is active in the shell.

    ``import_folder`` is the first folder in which Python looks for modules, ``shadowing`` what hides a
    library there.
    """

    python: str
    prefix: Path
    active: Path | None
    user_site: Path | None
    modules: Mapping[str, Module]
    torch: TorchBuild | None
    import_folder: Path | None = None
    shadowing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """One node, and the requested launch.

    ``master_name`` and ``reverse_name`` are the resolver's answers, None on a single node, which needs
    neither. ``storage`` maps a folder's purpose (``logs``, ``output``, ``temporary``, ``shm``) to its file
    system; ``named_folders`` has the purposes for which the user named the folder. ``master_port`` is known
    on node 0 only. ``interfaces`` are the names of all interfaces, usable for the job or not.
    ``exempt_from_memlock``: may lock memory beyond the limit. ``devices`` is the health of the GPUs.
    """

    env: Environment
    plan: LaunchPlan
    installation: Installation
    own_name: ResolverAnswer
    master_name: ResolverAnswer | None = None
    reverse_name: ResolverAnswer | None = None
    storage: Mapping[str, Storage] = field(default_factory=dict)
    named_folders: frozenset[str] = frozenset()
    master_port: Port | None = None
    interfaces: frozenset[str] = frozenset()
    locks: tuple[BuildLock, ...] = ()
    available_memory_gib: float | None = None
    exempt_from_memlock: bool = True
    clock_s: float = 0.0
    devices: DeviceReading | None = None

    @property
    def is_distributed(self) -> bool:
        """Whether the job has other nodes."""
        return self.plan.topology.nnodes > 1

    @property
    def has_gpus(self) -> bool:
        """Whether this node's processes use GPUs."""
        return bool(self.plan.hardware.gpus.devices)

    @property
    def ports_in_use(self) -> list[HcaPort]:
        """The RDMA ports that NCCL uses between nodes."""
        return self.plan.ports_in_use(self.env.inherited())

    def variable(self, name: str) -> str | None:
        """Return a variable as the job will see it: set outside, or by this launcher."""
        chosen = {variable.name: variable.value for variable in self.plan.env}
        return chosen.get(name, self.env.get(name))
