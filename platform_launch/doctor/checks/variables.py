"""Variables that contradict each other or this node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, error, warning
from platform_launch.hardware import Interface
from platform_launch.hardware.names import is_loopback
from platform_launch.plan.nccl import exact_interface, infiniband_off
from platform_launch.text import Phrase, joined

# Not NCCL's: often left over from debugging, and slow.
_DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": Phrase("every kernel waits for the one before"),
    "TORCH_DISTRIBUTED_DEBUG": Phrase("every collective is checked against the other ranks"),
    "TORCH_SHOW_CPP_STACKTRACES": Phrase("stack traces are collected"),
}
_OFF = ("", "0", "OFF", "INFO")


def unknown_interfaces(facts: Facts) -> Iterator[Finding]:
    """Report interface variables that name an interface this node lacks: NCCL and gloo fail on them."""
    machine = facts.plan.hardware
    if not facts.is_distributed or machine.assumed or not facts.interfaces:
        return
    have = joined(sorted(facts.interfaces))
    everything = replace(machine, interfaces=tuple(Interface(name, ()) for name in sorted(facts.interfaces)))
    nccl, gloo = facts.env.get("NCCL_SOCKET_IFNAME"), facts.env.get("GLOO_SOCKET_IFNAME")
    if nccl is not None and exact_interface(nccl, everything) is None:
        level = error if facts.has_gpus else warning
        yield level(
            "interface-unknown",
            Phrase(
                "NCCL_SOCKET_IFNAME={chosen} selects no interface of this node (it has {have}): NCCL stops "
                "with 'no socket interface found'",
                chosen=nccl,
                have=have,
            ),
            "NCCL_SOCKET_IFNAME",
            "unset it: the interface on the route to the master is then chosen on each node",
        )
    chosen = {"NCCL_SOCKET_IFNAME": nccl, "GLOO_SOCKET_IFNAME": gloo}
    given = {name: value.strip().lstrip("=") for name, value in chosen.items() if value is not None}
    # If they differ, contradictions() reports it.
    loopback = list(given) if set(given.values()) == {"lo"} else []
    if loopback and not is_loopback(facts.plan.topology.master_addr):
        yield warning(
            "interface-loopback",
            Phrase(
                "{names}=lo is the loopback: no other host can be reached by it",
                names=" and ".join(loopback),
            ),
            loopback[0],
            "unset it: the interface on the route to the master is then chosen on each node",
        )
    missing = [name for name in (gloo or "").split(",") if name and name not in facts.interfaces]
    if missing:
        yield warning(
            "interface-unknown",
            Phrase(
                (
                    "GLOO_SOCKET_IFNAME={chosen}: this node has no {missing} (it has {have}); gloo "
                    "needs exact names, and fails with 'Unable to find address'"
                ),
                chosen=gloo,
                missing=joined(missing),
                have=have,
            ),
            "GLOO_SOCKET_IFNAME",
            "unset it: it then follows NCCL_SOCKET_IFNAME or the route to the master",
        )


def contradictions(facts: Facts) -> Iterator[Finding]:
    """Report contradictory variables: NCCL silently follows one of them, rarely the intended one."""
    env, finding_id = facts.env, "variable-contradiction"
    if infiniband_off(env) and "NCCL_IB_HCA" in env:
        yield warning(
            finding_id,
            Phrase(
                "NCCL_IB_DISABLE={disable} turns InfiniBand off, so NCCL_IB_HCA={chosen} is not used",
                disable=env["NCCL_IB_DISABLE"],
                chosen=env["NCCL_IB_HCA"],
            ),
            "NCCL_IB_DISABLE",
            "unset NCCL_IB_DISABLE to use these adapters",
        )
    if infiniband_off(env) and env.get("NCCL_NET", "").strip().upper() == "IB":
        level = error if facts.is_distributed and facts.has_gpus else warning
        yield level(
            finding_id,
            Phrase(
                "NCCL_NET=IB demands InfiniBand, NCCL_IB_DISABLE={disable} forbids it: NCCL finds no network",
                disable=env["NCCL_IB_DISABLE"],
            ),
            "NCCL_NET",
            "unset one of them",
        )
    yield from _interfaces(facts)
    family, master = env.get("NCCL_SOCKET_FAMILY", ""), facts.plan.topology.master_addr
    if family.strip() == "AF_INET6" and master.replace(".", "").isdigit():
        yield warning(
            finding_id,
            Phrase(
                "NCCL_SOCKET_FAMILY={family} requires IPv6, but the master's address {master} is IPv4",
                family=family,
                master=master,
            ),
            "NCCL_SOCKET_FAMILY",
            "unset NCCL_SOCKET_FAMILY",
        )


def _interfaces(facts: Facts) -> Iterator[Finding]:
    nccl, gloo = facts.env.get("NCCL_SOCKET_IFNAME"), facts.env.get("GLOO_SOCKET_IFNAME")
    if nccl is None or gloo is None:
        return
    used = exact_interface(nccl, facts.plan.hardware)
    if used is not None and used not in gloo.split(","):
        yield warning(
            "variable-contradiction",
            Phrase(
                (
                    "NCCL_SOCKET_IFNAME={nccl} selects {used}, but GLOO_SOCKET_IFNAME={gloo} "
                    "selects another network: ranks would connect on one and train on the other"
                ),
                nccl=nccl,
                used=used,
                gloo=gloo,
            ),
            "GLOO_SOCKET_IFNAME",
            "unset GLOO_SOCKET_IFNAME: it then follows NCCL_SOCKET_IFNAME",
        )


def debugging_left_on(facts: Facts) -> Iterator[Finding]:
    """Warn of variables that make every step slower."""
    for name, cost in _DEBUGGING.items():
        value = facts.env.get(name, "")
        if value.strip().upper() not in _OFF:
            yield warning(
                "variable-debug-only",
                Phrase(
                    "{name}={value} is meant for debugging: {cost}",
                    name=name,
                    value=value,
                    cost=cost,
                ),
                name,
                Phrase("unset {name}", name=name),
            )


def too_many_threads(facts: Facts) -> Iterator[Finding]:
    """Warn of more threads than processors, which slows every process of the node."""
    value = facts.env.get("OMP_NUM_THREADS", "").strip()
    nproc, cpus = facts.plan.topology.nproc_per_node or 1, facts.plan.hardware.host.cpus
    if value.isdecimal() and int(value) > 1 and int(value) * nproc > 2 * cpus:
        yield warning(
            "variable-contradiction",
            Phrase(
                "OMP_NUM_THREADS={value} makes {threads} threads on {cpus} CPUs (processes: {processes})",
                value=value,
                threads=int(value) * nproc,
                cpus=f"{cpus:g}",
                processes=nproc,
            ),
            "OMP_NUM_THREADS",
            Phrase("unset it: {threads} is then chosen", threads=max(1, int(cpus / nproc))),
        )
