"""Every id that a finding can have: stable, and explained in ``docs/reference/findings.md``."""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.errors import (
    HardwareError,
    InputError,
    InstallationError,
    LaunchError,
    TopologyError,
    UnfitNodeError,
    UsageError,
)
from platform_launch.health.finding import IDS as DEVICE_IDS

# Findings that can refuse a launch, with their error family (and so the exit code).
REFUSALS: Mapping[str, type[LaunchError]] = {
    "refused-usage": UsageError,
    "refused-topology": TopologyError,
    "refused-input": InputError,
    "refused-installation": InstallationError,
    "refused-hardware": HardwareError,
    "package-missing": InstallationError,
    "interface-unknown": InputError,
    "variable-contradiction": InputError,
    "folder-not-writable": InputError,
    "disk-low": HardwareError,
    "port-unusable": TopologyError,
    "rdma-gid-missing": InputError,
    "gpu-lost": UnfitNodeError,
    "gpu-recovery-action": UnfitNodeError,
    "gpu-rows-failed": UnfitNodeError,
}

_LOCAL_WARNINGS = {
    "build-lock-stale",
    "clock-wrong",
    "gpu",
    "gpu-unused",
    "home-not-writable",
    "hostname-loopback",
    "hostname-unresolved",
    "inodes-low",
    "interface-loopback",
    "interpreter-other-environment",
    "master-elsewhere",
    "master-is-this-node",
    "master-no-route",
    "master-unresolved",
    "memlock-low",
    "memory-low",
    "package-shadowed",
    "package-user-site",
    "platform-reading",
    "rack-fabric",
    "rank-order",
    "rdma-hca-unknown",
    "rdma-no-device",
    "rdma-other-socket",
    "rdma-port-down",
    "reverse-dns-slow",
    "shm-small",
    "temporary-not-private",
    "torch-newer-than-driver",
    "torch-other-vendor",
    "torch-unsafe-load",
    "torch-without-cuda",
    "training-setting",
    "variable-dead",
    "variable-debug-only",
    "variable-deprecated",
    "variable-renamed",
    "variable-unknown",
    "variable-unread",
}
# Checked in child processes, by `doctor` only.
_DEEP = {
    "cuda-unavailable",
    "deepspeed-broken",
    "deepspeed-ops",
    "gpu-allocation-failed",
    "gpu-count-differs",
    "jax-devices",
    "jax-import-failed",
    "jax-uses",
    "nccl-missing",
    "probe-unanswered",
    "torch-import-failed",
}
# Checked by all nodes together, by `doctor` only.
_CLUSTER = {
    "clock-differs",
    "collective-failed",
    "collective-measured",
    "collective-wrong",
    "link-broken",
    "link-slow",
    "meeting-failed",
    "mtu-differs",
    "node-absent",
    "node-duplicate",
    "node-foreign",
    "node-silent",
    "node-slow",
    "node-unreachable",
}

CATALOGUE = frozenset({*REFUSALS, *_LOCAL_WARNINGS, *_DEEP, *_CLUSTER, *DEVICE_IDS})
