"""InfiniBand and RoCE: port states, GIDs, and the adapters in variables."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, error, warning
from platform_launch.hardware import HcaPort, NicDistance, PciDistance
from platform_launch.plan.nccl import selects
from platform_launch.text import Phrase, joined


def ports_down(facts: Facts) -> Iterator[Finding]:
    """Report InfiniBand ports that are down: they cost bandwidth. Unused Ethernet ports are normal."""
    ports = [port for port in facts.plan.hardware.hca_ports if port.link_layer == "InfiniBand"]
    down = [f"{port.device}:{port.port}" for port in ports if not port.active]
    if down and facts.is_distributed and facts.has_gpus:
        yield warning(
            "rdma-port-down",
            Phrase(
                "InfiniBand ports that are not active: {names} ({down} of {ports})",
                names=joined(down),
                down=len(down),
                ports=len(ports),
            ),
            joined(down),
            (
                "check cable, switch port and subnet manager (ibstat); other nodes will wait for "
                "this node's remaining ports"
            ),
        )


def gids(facts: Facts) -> Iterator[Finding]:
    """Check the GIDs that RoCE uses: without the right one, NCCL fails with 'error 12' or ibv_modify_qp."""
    ports = [port for port in facts.ports_in_use if port.link_layer == "Ethernet"]
    if not ports:
        return
    index = facts.env.get("NCCL_IB_GID_INDEX", "").strip()
    if index.isdecimal():
        lacking = [port for port in ports if int(index) not in dict(port.gids)]
        if lacking:
            level = error if len(lacking) == len(ports) else warning
            yield level(
                "rdma-gid-missing",
                Phrase(
                    "NCCL_IB_GID_INDEX={index}, but {ports} has no GID {index} on this node (it has "
                    "{found}): connections fail with IBV_WC_RETRY_EXC_ERR",
                    index=index,
                    ports=_names(lacking),
                    found=_indices(lacking[0]),
                ),
                "NCCL_IB_GID_INDEX",
                "unset it: NCCL finds the RoCE v2 GID by itself since 2.21",
            )
        return
    without = [port for port in ports if "RoCE v2" not in dict(port.gids).values()]
    if without:
        yield warning(
            "rdma-gid-missing",
            Phrase(
                "{ports} has no RoCE v2 GID (it has {found}): traffic cannot be routed",
                ports=_names(without),
                found=_indices(without[0]),
            ),
            _names(without),
            "assign an IP address to the adapter's interface in this container",
        )


def far_adapters(facts: Facts) -> Iterator[Finding]:
    """Report GPUs whose nearest adapter is on another NUMA node: their traffic crosses the socket link."""
    used = {port.device for port in facts.ports_in_use}
    nearest: dict[int, NicDistance] = {}
    for one in facts.plan.hardware.nic_distances:
        if one.adapter in used and (one.gpu not in nearest or one.distance < nearest[one.gpu].distance):
            nearest[one.gpu] = one
    far = [gpu for gpu, one in nearest.items() if one.distance is PciDistance.SYS]
    if far and facts.is_distributed:
        shown = joined(
            [f"GPU {gpu}: {one.adapter} {one.distance.name}" for gpu, one in sorted(nearest.items())], "; "
        )
        yield warning(
            "rdma-other-socket",
            Phrase(
                "the nearest adapter in use is on another NUMA node for GPUs {gpus} ({shown})",
                gpus=joined(far),
                shown=shown,
            ),
            joined(f"GPU {gpu}" for gpu in far),
            "give the container the adapters of both sockets, or name them all in NCCL_IB_HCA",
        )


def unknown_hcas(facts: Facts) -> Iterator[Finding]:
    """Report an NCCL_IB_HCA that selects nothing: NCCL then silently falls back to sockets."""
    chosen, have = facts.env.get("NCCL_IB_HCA"), facts.plan.hardware.hca_ports
    if chosen is None or not have or not facts.is_distributed:
        return
    active = [port for port in have if port.active]
    if not any(selects(chosen, port) for port in active):
        yield warning(
            "rdma-hca-unknown",
            Phrase(
                "NCCL_IB_HCA={chosen} selects no active port of this node (active: {active}): NCCL would use "
                "slow sockets",
                chosen=chosen,
                active=_names(active) or Phrase("none"),
            ),
            "NCCL_IB_HCA",
            "unset it: the active ports are then named exactly",
        )


def _names(ports: list[HcaPort]) -> str:
    return joined(f"{port.device}:{port.port}" for port in ports)


def _indices(port: HcaPort) -> str:
    return joined(f"{index} ({kind})" for index, kind in port.gids) or Phrase("none")
