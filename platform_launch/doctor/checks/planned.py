"""What the plan itself warns of, as findings. A launch says these without the doctor."""

from __future__ import annotations

from collections.abc import Iterator

from platform_launch.doctor.facts import Facts
from platform_launch.doctor.finding import Finding, warning
from platform_launch.settings import found_variables


def plan_warnings(facts: Facts) -> Iterator[Finding]:
    """Yield each of the plan's warnings under the id of the room it comes from."""
    plan = facts.plan
    topology, machine = plan.topology, plan.hardware
    notices = {n.text: n for n in found_variables.notices(facts.env, topology, machine)}
    for text in plan.warnings:
        if text in topology.warnings:
            yield warning("platform-reading", text, f"platform {topology.platform}")
        elif text in machine.gpus.warnings:
            yield warning("gpu", text, machine.gpus.source)
        elif text in machine.warnings:
            yield warning("rdma-no-device", text, "/dev/infiniband")
        elif text in notices:
            yield from _of_notice(notices[text])
        elif text in plan.training.warnings:
            yield warning("training-setting", text, plan.training.rule)
        else:
            yield warning("gpu-unused", text, topology.sources.get("nproc_per_node", "plan"))


def _of_notice(notice: found_variables.Notice) -> Iterator[Finding]:
    if notice.kind == "interface":
        return  # judged by variables.unknown_interfaces, which knows all interfaces
    finding_id = notice.kind if notice.kind == "rack-fabric" else f"variable-{notice.kind}"
    yield warning(finding_id, notice.text, notice.variable)
