"""The port, the clock, the devices, and leftovers of earlier runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, Level, error, warning
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.text import Phrase

# No clock can be right that is before this project was written.
_EARLIEST_YEAR = 2025
_LATEST_YEAR = 2100
# An op compiles for a few minutes at most.
_STALE_AFTER_S = 60.0


def master_port(facts: Facts) -> Iterator[Finding]:
    """Check that node 0 can listen on MASTER_PORT."""
    port = facts.master_port
    if port is None or not port.problem:
        return
    if port.taken:
        what = Phrase(
            "port {port} (MASTER_PORT) is in use by {holder}", port=port.number, holder=port.held_by()
        )
        hint = "stop it if an earlier run left it behind, or choose another --master-port for every node"
    else:
        what = Phrase(
            "port {port} (MASTER_PORT) cannot be opened: {problem}",
            port=port.number,
            problem=port.problem,
        )
        hint = "choose a port above 1023 with --master-port"
    level = error if _is_listened_on(facts.plan) else warning
    yield level("port-unusable", what, f"port {port.number}", hint)


def _is_listened_on(plan: LaunchPlan) -> bool:
    """Return whether the launcher itself opens the port, whatever the script does."""
    yaml = plan.training.accelerate_yaml
    if plan.launcher == "torchrun" or (yaml is not None and yaml.uses_deepspeed):
        return True
    return plan.launcher != "python" and (plan.topology.world_size or 1) > 1


def clock(facts: Facts) -> Iterator[Finding]:
    """Report a clock that is years off: it breaks certificates and the order of several nodes' log lines."""
    year = time.gmtime(facts.clock_s).tm_year
    if not _EARLIEST_YEAR <= year <= _LATEST_YEAR:
        yield warning(
            "clock-wrong",
            Phrase("this node's clock is set to the year {year}", year=year),
            "clock",
            "set the clock, and keep it synchronised with NTP or chrony",
        )


def devices(facts: Facts) -> Iterator[Finding]:
    """Report GPUs that have failed: the job would fail too, hours later."""
    if facts.devices is None:
        return
    from platform_launch.health.faults import faults
    from platform_launch.health.finding import Grade

    levels = {Grade.BAD: Level.ERROR, Grade.SUSPECT: Level.WARNING, Grade.HEALTHY: Level.INFO}
    for found in faults(facts.devices):
        what = Phrase("{where}: {what}", where=found.where, what=found.what)
        yield Finding(found.id, levels[found.grade], what, found.where, found.hint)


def build_locks(facts: Facts) -> Iterator[Finding]:
    """Report build locks that nobody holds: they silently block every process that needs the op."""
    for lock in facts.locks:
        if not lock.held and lock.age_s > _STALE_AFTER_S:
            yield warning(
                "build-lock-stale",
                Phrase(
                    (
                        "{path} is {age} old and no process on this node holds it: a job that "
                        "needs {op} would wait for it forever"
                    ),
                    path=lock.path,
                    age=_age(lock.age_s),
                    op=lock.path.parent.name,
                ),
                str(lock.path),
                Phrase("remove it if no other node is compiling there: rm {path}", path=lock.path),
            )


def _age(seconds: float) -> Phrase:
    if seconds < 2 * 3600:
        return Phrase("{number} minutes", number=f"{seconds / 60:.0f}")
    if seconds < 72 * 3600:
        return Phrase("{number} hours", number=f"{seconds / 3600:.0f}")
    return Phrase("{number} days", number=f"{seconds / 86400:.0f}")
