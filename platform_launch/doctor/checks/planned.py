"""The plan's own warnings, as findings. A launch prints these without the doctor."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, warning
from platform_launch.plan.network_order import RankOrder

# Has its own check, which knows more (variables.unknown_interfaces: all interfaces).
_CHECKED = frozenset({"interface-unknown"})


def plan_warnings(facts: Facts) -> Iterator[Finding]:
    """Yield each of the plan's warnings as a finding of the same id."""
    for found in facts.plan.warnings:
        if found.id not in _CHECKED:
            yield warning(found.id, found.text, found.origin)


def rank_order(found: RankOrder | None) -> Iterator[Finding]:
    """Report ranks that do not follow the network's switches. At a launch, the roll call reports it."""
    if found is not None and found.warning is not None:
        yield warning("rank-order", found.warning, "all nodes")
