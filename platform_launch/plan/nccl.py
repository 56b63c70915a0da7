"""Collective libraries and torch's flight recorder: variables for production, each with its reason.

NCCL and RCCL read NCCL_*; HCCL and oneCCL have their own names for the interface of their sockets, and gloo
serves every vendor beside them. Sources: NVIDIA, NCCL Environment Variables; AMD, RCCL environment variables;
hiascend.com, HCCL_SOCKET_IFNAME and HCCL_CONNECT_TIMEOUT; oneCCL, src/atl/util/pm/pmi_resizable_rt (the
interface of its key-value store) and libfabric, fi_tcp(7).

Nothing here overwrites what the platform or the user set. PAI Lingjun, for example, presets service levels
and GID indices, and a launcher that replaces them makes jobs slower.
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.environment import Environment
from platform_launch.hardware import Hardware, HcaPort
from platform_launch.plan.variables import EnvVar
from platform_launch.platforms.ports import own_ports
from platform_launch.text import Phrase, counted
from platform_launch.topology import Topology

# Shown beside NAME==value, which looks like a typo.
EXACTLY = Phrase("the leading = is NCCL's syntax for exact names")
_ROOM = "nccl"
# Of this product's own ports, the one after those of the rendezvous.
_RAS_PORT = 3
# Of the machines that the main seed was written for.
_GB200_INTERFACES = ("enP22p3s0f0np0", "enP6p3s0f0np0")


def nccl_variables(
    env: Environment, topology: Topology, hardware: Hardware, flight_recorder_prefix: str
) -> list[EnvVar]:
    """Return what to export for communication on this node.

    ``flight_recorder_prefix`` is a path to which NCCL's watchdog appends the rank when it dumps.
    """
    wanted: list[EnvVar] = []
    vendor = hardware.accelerator.vendor
    if topology.nnodes > 1:
        wanted += _interfaces(env, topology, hardware)
    if vendor is not None and vendor.reads_nccl:
        if topology.nnodes > 1:
            wanted += _infiniband(env, hardware)
        wanted += [
            EnvVar("NCCL_DEBUG", "WARN", _ROOM, "NCCL's warnings name the cause; its default prints none"),
            EnvVar(
                "NCCL_RAS_ADDR",
                f"localhost:{own_ports(topology.master_port, _RAS_PORT + 1)[_RAS_PORT]}",
                _ROOM,
                "NCCL's status port: every job on a node needs its own (default 28028)",
            ),
        ]
        wanted += _flight_recorder(flight_recorder_prefix)
    return [variable for variable in wanted if variable.name not in env]


def _interfaces(env: Environment, topology: Topology, hardware: Hardware) -> list[EnvVar]:
    """Return the interface for sockets: the platform's recommendation, or the one towards the master."""
    if topology.interface is None and is_gb200(hardware):
        return _gb200_interfaces(env, topology, hardware)
    if topology.interface is not None:
        name, reason = (
            topology.interface,
            Phrase("recommended by the platform ({source})", source=topology.sources["interface"]),
        )
    elif hardware.route_interface is not None:
        name, reason = (
            hardware.route_interface,
            Phrase("on the route to {address}", address=topology.master_addr),
        )
    else:
        return []
    return _sockets(env, topology, hardware, [name], reason)


def _gb200_interfaces(env: Environment, topology: Topology, hardware: Hardware) -> list[EnvVar]:
    """Return a GB200's fast Ethernet ports: with InfiniBand off (below), they carry traffic between racks.

    A simulated machine gets their usual names. A real one without them uses the route, because NCCL fails if
    it is told to use an interface that does not exist.
    """
    fast = sorted(item.name for item in hardware.interfaces if item.name.startswith("enP"))
    if fast:
        reason = "GB200: the fast Ethernet ports (enP*) of this node"
    elif hardware.assumed:
        fast, reason = list(_GB200_INTERFACES), "GB200: the usual names of its fast Ethernet ports"
    elif hardware.route_interface is not None:
        fast = [hardware.route_interface]
        reason = Phrase(
            "on the route to {address}; this GB200 shows no enP* port that is up",
            address=topology.master_addr,
        )
    else:
        return []
    if hardware.route_interface in fast:  # gloo takes the first, and must reach the master by it
        fast.remove(hardware.route_interface)
        fast.insert(0, hardware.route_interface)
    return _sockets(env, topology, hardware, fast, reason)


def _sockets(
    env: Environment, topology: Topology, hardware: Hardware, names: list[str], reason: str
) -> list[EnvVar]:
    name = names[0]
    vendor = hardware.accelerator.vendor
    wanted = _library_sockets(vendor.collectives if vendor is not None else "NCCL", names, reason)
    chosen = env.get("NCCL_SOCKET_IFNAME")
    if chosen is None:
        wanted.append(
            EnvVar(
                "GLOO_SOCKET_IFNAME", name, _ROOM, Phrase("as NCCL_SOCKET_IFNAME: {reason}", reason=reason)
            )
        )
    elif (exact := exact_interface(chosen, hardware)) not in (None, "lo"):
        wanted.append(
            EnvVar(
                "GLOO_SOCKET_IFNAME",
                exact,
                _ROOM,
                Phrase("follows NCCL_SOCKET_IFNAME={chosen}, set outside", chosen=chosen),
            )
        )
    if ":" in topology.master_addr and (vendor is None or vendor.reads_nccl):
        wanted.append(EnvVar("NCCL_SOCKET_FAMILY", "AF_INET6", _ROOM, "the master's address is IPv6"))
    return wanted


def _library_sockets(library: str, names: list[str], reason: str) -> list[EnvVar]:
    """Return the variables that give a collective library its interfaces."""
    # NCCL and HCCL take "eth0" as a prefix (eth01 too) and "=eth0" exactly; gloo takes exact names only.
    exactly = f"={','.join(names)}"
    if library in ("NCCL", "RCCL"):
        why = Phrase("{reason}; {exactly}", reason=reason, exactly=EXACTLY)
        return [EnvVar("NCCL_SOCKET_IFNAME", exactly, _ROOM, why)]
    if library == "HCCL":
        waits = Phrase("ranks may reach their first collective minutes apart; HCCL's default is 120 s")
        return [
            EnvVar("HCCL_SOCKET_IFNAME", exactly, _ROOM, Phrase("{reason}; exact names", reason=reason)),
            EnvVar("HCCL_CONNECT_TIMEOUT", "600", _ROOM, waits),
        ]
    if library == "oneCCL":
        return [EnvVar(variable, names[0], _ROOM, reason) for variable in ("CCL_KVS_IFACE", "FI_TCP_IFACE")]
    return []


def exact_interface(pattern: str, hardware: Hardware) -> str | None:
    """Return the first interface of this node that an NCCL_SOCKET_IFNAME value selects, or None.

    NCCL's grammar: a comma list of prefixes; a leading ``=`` asks for exact names, ``^`` excludes.
    """
    names = [interface.name for interface in hardware.interfaces]
    excluding = pattern.startswith("^")
    text = pattern.lstrip("^")
    exact = text.startswith("=")
    wanted = tuple(item for item in text.lstrip("=").split(",") if item)
    for name in names:
        hit = name in wanted if exact else name.startswith(wanted)
        if hit != excluding:
            return name
    # The loopback interface is not among the usable ones; NCCL takes it when it is asked for by name.
    return "lo" if "lo" in wanted and not excluding else None


def _infiniband(env: Environment, hardware: Hardware) -> list[EnvVar]:
    if is_gb200(hardware) and "NCCL_IB_HCA" not in env:
        return [
            EnvVar(
                "NCCL_IB_DISABLE",
                "1",
                _ROOM,
                "GB200 default of this project: traffic between racks uses TCP; set 0 to use InfiniBand",
            )
        ]
    ports = training_ports(hardware.hca_ports)
    if not ports or infiniband_off(env):
        return []
    kind = ports[0].link_layer
    rate = Phrase(" at {rate:g} Gb/s", rate=ports[0].rate_gbps) if ports[0].rate_gbps else ""
    named = ",".join(f"{port.device}:{port.port}" for port in ports)
    return [
        EnvVar(
            "NCCL_IB_HCA",
            f"={named}",
            _ROOM,
            Phrase(
                "{ports}{rate}; {exactly}",
                ports=Phrase("{ports} of {kind}", ports=counted(len(ports), "active port"), kind=kind),
                rate=rate,
                exactly=EXACTLY,
            ),
        ),
        EnvVar(
            "NCCL_IB_TIMEOUT",
            "22",
            _ROOM,
            "4.096 µs × 2^22 ≈ 17 s per try: a link may flap without ending the job",
        ),
    ]


def training_ports(ports: tuple[HcaPort, ...]) -> list[HcaPort]:
    """Return the active ports of the training fabric: InfiniBand before RoCE, the fastest rate only.

    Slower or Ethernet ports beside InfiniBand serve storage and management; NCCL would use all of them.
    """
    active = [port for port in ports if port.active]
    infiniband = [port for port in active if port.link_layer == "InfiniBand"]
    candidates = infiniband or active
    fastest = max((port.rate_gbps or 0.0 for port in candidates), default=0.0)
    return [port for port in candidates if (port.rate_gbps or 0.0) == fastest]


def ports_in_use(variables: Mapping[str, str], ports: tuple[HcaPort, ...]) -> list[HcaPort]:
    """Return the ports that NCCL uses between nodes, given the job's variables."""
    if infiniband_off(variables) or variables.get("NCCL_NET", "").strip().lower() == "socket":
        return []
    chosen = variables.get("NCCL_IB_HCA", "").strip()
    if not chosen:
        return training_ports(ports)
    return [port for port in ports if port.active and selects(chosen, port)]


def infiniband_off(variables: Mapping[str, str]) -> bool:
    """Whether NCCL_IB_DISABLE turns InfiniBand and RoCE off."""
    return variables.get("NCCL_IB_DISABLE", "").strip() not in ("", "0")


def selects(chosen: str, port: HcaPort) -> bool:
    """Apply NCCL_IB_HCA: prefixes with optional ports; ``=`` asks for exact names, ``^`` excludes."""
    text = chosen.strip()
    excluding, text = text.startswith("^"), text.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    hit = False
    for item in filter(None, (item.strip() for item in text.split(","))):
        device, _, number = item.partition(":")
        named = port.device == device if exact else port.device.startswith(device)
        hit = hit or (named and number in ("", str(port.port)))
    return hit != excluding


def is_gb200(hardware: Hardware) -> bool:
    """Whether this node is a Grace Blackwell one."""
    return any("GB200" in gpu.name or "GB300" in gpu.name for gpu in hardware.gpus.devices)


def _flight_recorder(prefix: str) -> list[EnvVar]:
    """Record the last collectives and dump them on a timeout (both names: newer and older torch)."""
    recorder = Phrase("flight recorder: the last collectives of each rank")
    dump = Phrase("flight recorder: where a rank writes them after a timeout")
    return [
        EnvVar("TORCH_FR_BUFFER_SIZE", "2000", _ROOM, recorder),
        EnvVar("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", _ROOM, Phrase("{what} (older name)", what=recorder)),
        EnvVar("TORCH_FR_DUMP_TEMP_FILE", prefix, _ROOM, dump),
        EnvVar("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix, _ROOM, Phrase("{what} (older name)", what=dump)),
        EnvVar("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", _ROOM, "flight recorder: write on a timeout"),
        EnvVar(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "3",
            _ROOM,
            "lets the flight recorder finish; torchrun would set 1",
        ),
    ]
