"""This node's part in the cluster check: started as a child process; its answer is judged."""

from __future__ import annotations

from contextlib import suppress

from platform_launch import helper
from platform_launch.console import Console
from platform_launch.doctor import Finding
from platform_launch.doctor.cluster.director import longest_s
from platform_launch.doctor.cluster.document import DoctorTask, PartAnswer
from platform_launch.doctor.cluster.judge import judge
from platform_launch.doctor.finding import error
from platform_launch.doctor.gather import own_address, own_interface
from platform_launch.environment import Environment
from platform_launch.events import Event
from platform_launch.hardware.network import mtu
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.platforms.switches import place_of
from platform_launch.rendezvous.messages import ConsoleLine, InvalidMessageError, Message, decode, encode
from platform_launch.supervise import Command, capture
from platform_launch.text import Phrase
from platform_launch.topology import node_prefix

# From the start of a collective's processes to its end, including the import of torch or JAX.
_COLLECTIVE_LIMIT_S = {"gloo": 30.0, "nccl": 60.0, "jax": 60.0}
_START_LIMIT_S = 240.0


def consult(
    plan: LaunchPlan, env: Environment, *, ports: tuple[int, ...], with_jax: bool, join_limit_s: float
) -> list[Finding]:
    """Connect to the other nodes, and return the findings of all of them together."""
    topology, console = plan.topology, Console(node_prefix(plan.topology.node_rank))
    vendor = plan.hardware.accelerator.vendor
    # The probe uses CUDA, as ROCm's torch does; on other devices it measures the network with gloo.
    backend = "jax" if with_jax else "nccl" if vendor is not None and vendor.reads_nccl else "gloo"
    interface = own_interface(plan)
    task = DoctorTask(
        node_rank=topology.node_rank,
        nnodes=topology.nnodes,
        host=env.hostname,
        address=own_address(plan) or "127.0.0.1",
        mtu=mtu(interface.name) if interface else 0,
        job_id=topology.job_id,
        master_addr=topology.master_addr,
        master_port=topology.master_port,
        rendezvous_ports=ports,
        backend=backend,
        workers=1 if with_jax else topology.nproc_per_node or 1,
        join_limit_s=join_limit_s,
        collective_limit_s=_COLLECTIVE_LIMIT_S[backend],
        network=place_of(env, plan.hardware.gpus.fabric),
    )
    where = f"{task.master_addr}:{task.rendezvous_ports[0]}"
    console.info(
        Phrase(
            "connecting {nodes} nodes at {where}, for at most {limit:g} s",
            nodes=task.nnodes,
            where=where,
            limit=join_limit_s,
        )
    )
    variables = plan.child_environment(env.inherited())
    if task.backend == "jax" and vendor is None:
        variables.setdefault("JAX_PLATFORMS", "cpu")
    limit_s = _START_LIMIT_S + longest_s(task)
    command = Command(helper.command("doctor-part", encode(task).decode()), variables)
    answers: list[PartAnswer] = []

    def receive(line: str) -> None:
        with suppress(InvalidMessageError):  # a line that every Python of this image prints at startup
            message = decode(line.rstrip().encode(), Message)
            if isinstance(message, ConsoleLine):
                console.report(Event(message.event, message.level, fields={"what": message.text}))
            elif isinstance(message, PartAnswer):
                answers.append(message)

    ended = capture(command, timeout_s=limit_s, on_line=receive)
    found = (
        answers[-1]
        if answers
        else PartAnswer(failure=Phrase("its process failed: {failure}", failure=ended.failure(limit_s)))
    )
    if found.document is not None:
        return judge(found.document)
    return [
        error(
            "meeting-failed",
            Phrase(
                "this node could not connect to the others at {where}: {failure}",
                where=where,
                failure=found.failure,
            ),
            f"node {task.node_rank}",
            found.hint
            or (
                "check that the doctor was started on every node, with the same MASTER_ADDR; "
                "--timeout waits longer"
            ),
        )
    ]
