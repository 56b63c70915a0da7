"""Machines as values, for tests of the rooms that only read them."""

from __future__ import annotations

from platform_launch.hardware import Gpu, Gpus, Hardware, HcaPort, Host, Interface
from platform_launch.topology import Topology


def machine(
    gpus: int = 0,
    *,
    name: str = "NVIDIA H100 80GB HBM3",
    cpus: float = 64,
    interfaces: tuple[str, ...] = ("eth0",),
    hca_ports: tuple[HcaPort, ...] = (),
    route: str | None = "eth0",
    imex: bool = False,
    assumed: bool = False,
) -> Hardware:
    """Return a node with ``gpus`` equal GPUs."""
    devices = tuple(Gpu(index, name, 80.0, f"GPU-{index}") for index in range(gpus))
    return Hardware(
        gpus=Gpus(devices, source="NVML") if gpus else Gpus(),
        interfaces=tuple(Interface(interface, ("10.0.0.1",)) for interface in interfaces),
        hca_ports=hca_ports,
        host=Host("node", cpus, 512.0, 256.0, None, imex),
        route_interface=route,
        assumed=assumed,
    )


def port(device: str, *, active: bool = True, layer: str = "InfiniBand", rate: float = 400.0) -> HcaPort:
    """Return one RDMA port."""
    return HcaPort(device, 1, active, layer, rate)


def job(nnodes: int = 2, node_rank: int = 0, **fields: object) -> Topology:
    """Return a node of a job."""
    values: dict[str, object] = {
        "platform": "test",
        "nnodes": nnodes,
        "node_rank": node_rank,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        **fields,
    }
    return Topology(**values)  # type: ignore[arg-type]
