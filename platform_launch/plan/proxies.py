"""Proxy variables, which must not redirect the traffic between nodes.

gRPC, on which JAX's coordinator runs, sends its connections to ``http_proxy`` unless ``no_grpc_proxy`` or
``no_proxy`` names the host (grpc.io, core, environment variables). A cluster's proxy then drops them, and the
nodes wait for each other.
"""

from __future__ import annotations

from platform_launch.environment import Environment
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase
from platform_launch.topology import Topology

_PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")
_NAMES = ("no_proxy", "NO_PROXY")


def proxy_variables(env: Environment, topology: Topology) -> list[EnvVar]:
    """Return no_proxy and NO_PROXY with the nodes of the job in them, if a proxy is set."""
    proxy = next((name for one in _PROXIES for name in (one, one.upper()) if name in env), None)
    if proxy is None:
        return []
    listed = [entry.strip() for name in _NAMES for entry in env.get(name, "").split(",") if entry.strip()]
    hosts = ("localhost", "127.0.0.1", topology.master_addr, *topology.hosts)
    missing = [host for host in dict.fromkeys(hosts) if host not in listed]
    if "*" in listed or not missing:
        return []
    value = ",".join(dict.fromkeys([*listed, *missing]))
    reason = Phrase("{proxy} is set, and nodes connect to each other directly", proxy=proxy)
    return [EnvVar(name, value, "proxies", reason) for name in _NAMES]
