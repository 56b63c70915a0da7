"""What this machine is: facts only, no choices."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.hardware import accelerators, host, models, network, numa, nvml, ports, rdma, visible
from platform_launch.hardware.accelerators import Accelerator, AcceleratorReport, conclude
from platform_launch.hardware.gpus import Gpu, GpuProcess, Gpus
from platform_launch.hardware.host import Host
from platform_launch.hardware.network import Interface
from platform_launch.hardware.numa import Numa
from platform_launch.hardware.pci import PciDistance, distance
from platform_launch.hardware.rdma import HcaPort
from platform_launch.text import Phrase
from platform_launch.values import dataclass

__all__ = [
    "Accelerator",
    "AcceleratorReport",
    "Gpu",
    "GpuProcess",
    "Gpus",
    "Hardware",
    "HcaPort",
    "Host",
    "Interface",
    "NicDistance",
    "Numa",
    "PciDistance",
    "detect",
]


@dataclass(frozen=True)
class NicDistance:
    """How far an RDMA adapter is from a GPU, by the GPU's index and the adapter's name."""

    gpu: int
    adapter: str
    distance: PciDistance


@dataclass(frozen=True)
class Hardware:
    """Everything that the plan needs to know about one node.

    ``route_interface`` is the interface on the route to the master (if this machine is the master, the one
    with its address); None if unknown: single node, name not resolvable yet, loopback. ``free_port`` was free
    when the machine was examined. ``assumed``: the GPUs were given by ``--assume-gpus`` instead of read from
    the machine. ``warnings`` are in addition to those of the GPUs (``gpus.warnings``). ``reports`` are all
    other reports of accelerators, whether or not these were found.
    """

    gpus: Gpus
    interfaces: tuple[Interface, ...]
    hca_ports: tuple[HcaPort, ...]
    host: Host
    route_interface: str | None = None
    free_port: int | None = None
    assumed: bool = False
    warnings: tuple[str, ...] = ()
    reports: tuple[AcceleratorReport, ...] = ()
    numa: Numa = field(default_factory=Numa)
    nic_distances: tuple[NicDistance, ...] = ()

    @property
    def accelerator(self) -> Accelerator:
        """The conclusion from the devices and all other reports."""
        return conclude(self.gpus, self.reports)


def detect(
    environment: Environment,
    *,
    master_addr: str | None = None,
    assume: str | None = None,
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    dev_root: Path = Path("/dev"),
) -> Hardware:
    """Examine this machine, without starting a process or waiting longer than 0.3 s.

    ``assume`` replaces the GPUs, see :func:`models.parse`, and the CPUs are those of the simulated Slurm job
    if its variables are set; everything else is read from the machine. The roots may be recorded trees.
    Raises HardwareError for a driver that answers with an error, UsageError for an ``assume`` or
    CUDA_VISIBLE_DEVICES that cannot be read, InstallationError without /proc.
    """
    reports: tuple[AcceleratorReport, ...] = ()
    if assume is None:
        found, reports = _find_devices(environment, sys_root, proc_root, dev_root)
    else:
        found = models.parse(assume)
    interfaces = network.find()
    hca_ports = rdma.find(sys_root)
    this_host = host.find(
        environment.hostname,
        environment.get("HOME"),
        sys_root=sys_root,
        proc_root=proc_root,
        dev_root=dev_root,
    )
    return Hardware(
        gpus=found,
        interfaces=interfaces,
        hca_ports=hca_ports,
        host=this_host if assume is None else _of_the_job(this_host, environment),
        route_interface=network.route_towards(master_addr, interfaces) if master_addr else None,
        free_port=ports.free(),
        assumed=assume is not None,
        warnings=tuple(_without_verbs(hca_ports, dev_root)),
        reports=reports,
        nic_distances=_distances(found, hca_ports, sys_root),
        numa=numa.find((gpu.pci for gpu in found.devices), sys_root=sys_root, proc_root=proc_root),
    )


def _find_devices(
    environment: Environment, sys_root: Path, proc_root: Path, dev_root: Path
) -> tuple[Gpus, tuple[AcceleratorReport, ...]]:
    """Query NVIDIA's driver, then the kernel about other vendors, then all other reports of accelerators."""
    found = nvml.read(sys_root=sys_root, proc_root=proc_root)
    reports = accelerators.find_reports(environment, sys_root=sys_root, dev_root=dev_root)
    if not found.devices:
        others = accelerators.count_devices(environment, sys_root=sys_root, dev_root=dev_root)
        if others.devices:
            found = others
        elif found.driver is not None and not any(one.vendor == "nvidia" for one in reports):
            granted_none = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip() in ("none", "void")
            claim = AcceleratorReport("nvidia", None, Phrase("NVIDIA driver {version}", version=found.driver))
            reports = reports if granted_none else (*reports, claim)
    return visible.narrow(found, environment), reports


def _distances(gpus: Gpus, hca_ports: tuple[HcaPort, ...], sys_root: Path) -> tuple[NicDistance, ...]:
    adapters = {port.device: port.pci for port in hca_ports if port.active and port.pci}
    found = [
        (gpu.index, name, distance(gpu.pci, address, sys_root))
        for gpu in gpus.devices
        if gpu.pci
        for name, address in adapters.items()
    ]
    return tuple(NicDistance(gpu, name, far) for gpu, name, far in found if far is not None)


def _of_the_job(rehearsing: Host, environment: Environment) -> Host:
    """Give a simulated host the CPUs of its job, if Slurm's variables give them."""
    cpus = environment.get("SLURM_CPUS_PER_TASK", "")
    return (
        replace(rehearsing, cpus=float(cpus))
        if cpus.isascii() and cpus.isdigit() and int(cpus)
        else rehearsing
    )


def _without_verbs(hca_ports: tuple[HcaPort, ...], dev_root: Path) -> list[str]:
    """Report adapters that are visible but cannot be opened: NCCL silently falls back to sockets."""
    active = sum(port.active for port in hca_ports)
    if not active or any(dev_root.glob("infiniband/uverbs*")):
        return []
    warning = Phrase(
        "RDMA ports are active ({active}), but /dev/infiniband/uverbs* is not here: NCCL would "
        "use slow sockets. Give this container the RDMA devices",
        active=active,
    )
    return [warning]
