"""Recorded machines: small ``sys``, ``proc`` and ``dev`` trees written from tables.

Contents are in the kernel's own format. GID tables are shortened to 16 entries, except where their length
matters: real ones have up to 256, nearly all zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from platform_launch.hardware.numa import parse_cpus

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Roots:
    sys: Path
    proc: Path
    dev: Path


@dataclass(frozen=True)
class Port:
    """One adapter with one port. ``gids`` maps an index to (GID, type)."""

    device: str
    link_layer: str
    rate: str
    gids: dict[int, tuple[str, str]]
    state: str = "4: ACTIVE"
    table: int = 16


def ib(device: str, rate: str, guid: int, state: str = "4: ACTIVE") -> Port:
    gid = f"fe80:0000:0000:0000:a088:c203:00ab:{guid:04x}"
    return Port(device, "InfiniBand", rate, {0: (gid, "IB/RoCE v1")}, state)


def roce(device: str, rate: str, ipv4: str, table: int = 16) -> Port:
    """An Ethernet port as mlx5 fills it: link-local twice, then the IPv4 address twice (v1, v2)."""
    link_local = "fe80:0000:0000:0000:0e42:a1ff:fe5c:0001"
    first, second, third, fourth = (int(part) for part in ipv4.split("."))
    mapped = f"0000:0000:0000:0000:0000:ffff:{first:02x}{second:02x}:{third:02x}{fourth:02x}"
    gids = {
        0: (link_local, "IB/RoCE v1"),
        1: (link_local, "RoCE v2"),
        2: (mapped, "IB/RoCE v1"),
        3: (mapped, "RoCE v2"),
    }
    return Port(device, "Ethernet", rate, gids, table=table)


def machine(
    root: Path,
    ports: tuple[Port, ...] = (),
    *,
    cpus: str = "0-223",
    memory_gib: int = 2048,
    cgroup: str = "0::/\n",
    files: dict[str, str] | None = None,
) -> Roots:
    """Write a machine's trees under ``root``; ``files`` adds others by path, e.g. ``dev/…`` or ``sys/…``."""
    contents = {
        "proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1\n",
        "proc/self/cgroup": cgroup,
        "proc/meminfo": f"MemTotal:       {memory_gib * 1024**2} kB\nMemFree:        1024 kB\n",
        **(files or {}),
    }
    for path, text in contents.items():
        write(root / path, text)
    for port in ports:
        _write_port(root / "sys/class/infiniband" / port.device / "ports/1", port)
        write(root / "dev/infiniband" / f"uverbs{ports.index(port)}", "")
    return Roots(root / "sys", root / "proc", root / "dev")


def _write_port(folder: Path, port: Port) -> None:
    write(folder / "state", f"{port.state}\n")
    write(folder / "link_layer", f"{port.link_layer}\n")
    write(folder / "rate", f"{port.rate}\n")
    for index in range(port.table):
        gid, kind = port.gids.get(index, (ZERO, ""))
        write(folder / f"gids/{index}", f"{gid}\n")
        if kind:  # reading the type of an unused entry fails on a real machine
            write(folder / f"gid_attrs/types/{index}", f"{kind}\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def h100_infiniband(root: Path) -> Roots:
    """DGX-like: eight NDR ports for the GPUs, one of them down; a storage adapter in Ethernet mode."""
    compute = [0, 3, 4, 5, 6, 9, 10, 11]
    ports = [ib(f"mlx5_{n}", "400 Gb/sec (4X NDR)", n) for n in compute if n != 10]
    down = ib("mlx5_10", "10 Gb/sec (4X SDR)", 10, state="1: DOWN")
    storage = roce("mlx5_1", "100 Gb/sec (4X EDR)", "10.9.0.7")
    return machine(root, (*ports, down, storage))


def roce_bond(root: Path) -> Roots:
    """Four bonded RoCE adapters with the full GID table of a real device."""
    rate = "200 Gb/sec (4X HDR)"
    return machine(root, tuple(roce(f"mlx5_bond_{n}", rate, f"10.1.{n}.5", table=256) for n in range(4)))


def gb200(root: Path) -> Roots:
    """One compute tray: two Grace CPUs, four NDR ports, an IMEX channel."""
    ports = tuple(ib(f"mlx5_{n}", "400 Gb/sec (4X NDR)", n) for n in range(4))
    files = {"dev/nvidia-caps-imex-channels/channel0": ""}
    return machine(root, ports, cpus="0-143", memory_gib=960, files=files)


def bare_pod(root: Path) -> Roots:
    """A Kubernetes pod limited to 4 processors and 16 GiB on a large node; no RDMA."""
    files = {
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/memory.max": f"{16 * 1024**3}\n",
    }
    return machine(root, cpus="0-127", memory_gib=1024, files=files)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def mi300x(root: Path, *, count: int = 8, nodes: bool = True) -> Roots:
    """Two EPYC sockets and MI300X, four on each; the CPUs are KFD nodes too, and have no SIMD units."""
    files = {"dev/kfd": "", "sys/module/amdgpu/version": "6.10.5\n"} if nodes else {}
    for cpu in range(2):
        files[f"sys/class/kfd/kfd/topology/nodes/{cpu}/properties"] = "cpu_cores_count 96\nsimd_count 0\n"
    for index in range(count):
        bus = (0x0C, 0x22, 0x38, 0x5C, 0x9F, 0xAF, 0xBF, 0xDF)[index]
        minor = 128 + index * 8
        node = f"sys/class/kfd/kfd/topology/nodes/{index + 2}"
        files[f"{node}/properties"] = (
            "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nvendor_id 4098\n"
            f"device_id {0x74A1}\nlocation_id {bus << 8}\ndomain 0\ndrm_render_minor {minor}\n"
            f"unique_id {0xDEADBEEF0000 + index}\n"
        )
        files[f"{node}/mem_banks/0/properties"] = "heap_type 1\nsize_in_bytes 206141652992\n"
        if nodes:
            files[f"dev/dri/renderD{minor}"] = ""
        address = f"0000:{bus:02x}:00.0"
        files[f"sys/devices/pci/{address}/numa_node"] = f"{index // 4}\n"
    roots = machine(root, cpus="0-191", files=files)
    for index in range(count):
        bus = (0x0C, 0x22, 0x38, 0x5C, 0x9F, 0xAF, 0xBF, 0xDF)[index]
        device = roots.sys / f"devices/pci/0000:{bus:02x}:00.0"
        link(roots.sys / f"class/drm/renderD{128 + index * 8}/device", device)
        link(roots.sys / f"bus/pci/devices/0000:{bus:02x}:00.0", device)
    return roots


def ascend910b(root: Path, *, count: int = 8) -> Roots:
    """An Atlas 800T A2: eight NPUs, processing accelerators of vendor 19e5 on the PCI bus."""
    files = {"dev/davinci_manager": "", "dev/devmm_svm": "", "dev/hisi_hdc": ""}
    for index in range(count):
        files[f"dev/davinci{index}"] = ""
    for index in range(8):
        device = f"sys/bus/pci/devices/0000:{0x81 + index:02x}:00.0"
        files |= {f"{device}/vendor": "0x19e5\n", f"{device}/device": "0xd802\n"}
        files |= {f"{device}/class": "0x120000\n", f"{device}/numa_node": f"{index // 2}\n"}
    return machine(root, cpus="0-191", files=files)


def max1550(root: Path) -> Roots:
    """Two Data Center GPU Max 1550 of two tiles each, beside the host's own display adapter."""
    files: dict[str, str] = {}
    devices = {"0000:00:02.0": ("0x4680", 0), "0000:29:00.0": ("0x0bd5", 2), "0000:9a:00.0": ("0x0bd5", 2)}
    for address, (model, tiles) in devices.items():
        device = f"sys/devices/pci/{address}"
        files |= {f"{device}/vendor": "0x8086\n", f"{device}/device": f"{model}\n"}
        files[f"{device}/class"] = "0x038000\n"
        files |= {f"{device}/tile{tile}/gt0/id": "0\n" for tile in range(tiles)}
    files |= {f"dev/dri/renderD{128 + index}": "" for index in range(3)}
    roots = machine(root, files=files)
    for index, address in enumerate(devices):
        link(roots.sys / f"class/drm/renderD{128 + index}/device", roots.sys / f"devices/pci/{address}")
    return roots


def numa(root: Path, nodes: dict[int, str], *, sockets: dict[int, int] | None = None, smt: int = 0) -> None:
    """Add NUMA nodes with the CPUs of each; ``smt`` is how far a core's second hyperthread is, 0 for none.

    A node without CPUs holds memory only, as a GB200's GPUs do.
    """
    for node, cpus in nodes.items():
        write(root / f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
        for cpu in parse_cpus(cpus):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            first = cpu % smt if smt else cpu
            write(folder / "thread_siblings_list", f"{first},{first + smt}\n" if smt else f"{cpu}\n")
            write(folder / "physical_package_id", f"{(sockets or {}).get(node, node)}\n")


def near(root: Path, devices: dict[str, int]) -> None:
    """Say on which NUMA node each PCI device is."""
    for address, node in devices.items():
        write(root / f"sys/bus/pci/devices/{address}/numa_node", f"{node}\n")


def on_bus(root: Path, path: str, *, node: int, adapter: str = "") -> None:
    """Put a PCI device where the bus nests it, e.g. ``pci0000:15/0000:15:01.0/0000:17:00.0``."""
    device = root / "sys/devices" / path
    write(device / "numa_node", f"{node}\n")
    link(root / "sys/bus/pci/devices" / device.name, device)
    if adapter:
        link(root / f"sys/class/infiniband/{adapter}/device", device)
