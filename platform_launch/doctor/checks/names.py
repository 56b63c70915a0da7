"""Names and routes: this node's own name, the master's name, and the route to it."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, warning
from platform_launch.hardware.names import is_loopback
from platform_launch.text import Phrase, joined


def own_name(facts: Facts) -> Iterator[Finding]:
    """Check the node's own name: gloo publishes its address unless GLOO_SOCKET_IFNAME names an interface."""
    own, master = facts.own_name, facts.master_name
    if master is None or facts.variable("GLOO_SOCKET_IFNAME") is not None:
        return
    if master.found and all(is_loopback(address) for address in master.found):
        return  # all nodes are on this machine
    hint = Phrase(
        "set GLOO_SOCKET_IFNAME, or add this node's address for {name} to /etc/hosts", name=own.query
    )
    if not own.found:
        yield warning(
            "hostname-unresolved",
            Phrase(
                "this node's own name {name!r} does not resolve ({failure}): gloo would offer the loopback "
                "address to the other nodes",
                name=own.query,
                failure=own.failure,
            ),
            own.query,
            hint,
        )
    elif all(is_loopback(address) for address in own.found):
        yield warning(
            "hostname-loopback",
            Phrase(
                "this node's own name {name!r} resolves to {found}: gloo would offer that address to the "
                "other nodes",
                name=own.query,
                found=joined(own.found),
            ),
            own.query,
            hint,
        )


def master_name(facts: Facts) -> Iterator[Finding]:
    """Check the master's name. It may resolve later (pods start one after another), so this only warns."""
    master, topology = facts.master_name, facts.plan.topology
    if master is None:
        return
    source = topology.sources.get("master_addr", "MASTER_ADDR")
    if not master.found:
        yield warning(
            "master-unresolved",
            Phrase(
                "the master's name {name!r} ({source}) does not resolve: {failure}",
                name=master.query,
                source=source,
                failure=master.failure,
            ),
            master.query,
            "wait for node 0 to start, or check the name: in Kubernetes it needs a headless service",
        )
        return
    machine = facts.plan.hardware
    own = {address for interface in machine.interfaces for address in interface.addresses}
    is_here = any(address in own or is_loopback(address) for address in master.found)
    if topology.is_master and own and not is_here:
        yield warning(
            "master-elsewhere",
            Phrase(
                "this is node 0, but the master {name!r} ({source}) is {found}, and this node has {own}",
                name=master.query,
                source=source,
                found=joined(master.found),
                own=joined(sorted(own)),
            ),
            master.query,
            "set MASTER_ADDR to node 0, unless the address is translated on the way",
        )
    elif not topology.is_master and is_here and not _is_written_as_loopback(master.query):
        yield warning(
            "master-is-this-node",
            Phrase(
                "this is node {rank}, but the master {name!r} ({source}) is this machine itself: it would "
                "wait for itself, unless node 0 runs here too",
                rank=topology.node_rank,
                name=master.query,
                source=source,
            ),
            master.query,
            (
                "set the address of node 0 on all nodes; a command such as $(hostname -i) gives a "
                "different one on each"
            ),
        )
    elif not is_here and machine.route_interface is None and not machine.assumed:
        yield warning(
            "master-no-route",
            Phrase(
                "this node has no route to the master {name!r} ({found})",
                name=master.query,
                found=joined(master.found),
            ),
            master.query,
            "check the node's routes (ip route get) and which network MASTER_ADDR belongs to",
        )


def _is_written_as_loopback(host: str) -> bool:
    """Return whether a user names this machine on purpose: all nodes run on it, as in a simulation."""
    return host == "localhost" or is_loopback(host)


def reverse_lookup(facts: Facts) -> Iterator[Finding]:
    """Look up the name of each peer, as TCPStore does: slow answers cost seconds per connection."""
    reverse = facts.reverse_name
    if reverse is not None and reverse.late:
        yield warning(
            "reverse-dns-slow",
            Phrase(
                "the name server answers slowly for this node's address {address}: torch looks up the "
                "name of every node that connects, one after another, 5–10 s each",
                address=reverse.query,
            ),
            reverse.query,
            ("add the nodes' addresses and names to /etc/hosts, or fix the name server's reverse zone"),
        )
