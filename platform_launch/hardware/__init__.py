"""What this machine is: facts only, no choices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    """Everything the settings need to know about one node.

    ``route_interface`` is the interface on the route towards the master (the one that holds the master's
    address where that is this machine), None when it is not known: single node, name not resolvable yet,
    loopback. ``free_port`` could be listened on when the machine was looked at. ``assumed`` is true when the
    GPUs were given by ``--assume-gpus`` instead of read from the machine. ``warnings`` come beside those of
    the GPUs (``gpus.warnings``). ``reports`` is what else reports accelerators, whether or not they were
    found.
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
        """What the devices and all other reports mean together."""
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
    """Look at this machine; start no process, wait for nothing longer than 0.3 s.

    ``assume`` replaces the GPUs, see :func:`models.parse`, and the CPUs are those of the Slurm job that is
    pretended, where its variables are set; all else is read from the machine. The roots
    let recorded trees stand in for it. Raises HardwareError for a driver that answers with an error,
    UsageError for an ``assume`` or CUDA_VISIBLE_DEVICES that cannot be read, InstallationError without /proc.
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
    """Ask NVIDIA's driver, then the kernel about other vendors, then whoever else reports accelerators."""
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
    """Give a rehearsal's host the CPUs of the job that it pretends to be, where Slurm says them."""
    cpus = environment.get("SLURM_CPUS_PER_TASK", "")
    return (
        replace(rehearsing, cpus=float(cpus))
        if cpus.isascii() and cpus.isdigit() and int(cpus)
        else rehearsing
    )


def _without_verbs(hca_ports: tuple[HcaPort, ...], dev_root: Path) -> list[str]:
    """NCCL falls back to sockets in silence when the adapters are visible but may not be opened."""
    active = sum(port.active for port in hca_ports)
    if not active or any(dev_root.glob("infiniband/uverbs*")):
        return []
    warning = Phrase(
        "RDMA ports are active ({active}), but /dev/infiniband/uverbs* is not here: NCCL would "
        "use slow sockets. Give this container the RDMA devices",
        active=active,
    )
    return [warning]
