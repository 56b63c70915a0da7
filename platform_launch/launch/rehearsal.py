"""A rehearsal of a job on one machine: what each node is given, and what is said at the end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from platform_launch.console import STDOUT, Console
from platform_launch.console.languages import event_line
from platform_launch.errors import InstallationError
from platform_launch.events import event
from platform_launch.hardware import Hardware, ports
from platform_launch.helper import PACKAGE
from platform_launch.launch.conclusion import first_failed
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.text import Phrase
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.sources import events_of, node_of


def platform_variables(nodes: int) -> list[dict[str, str]]:
    """Return what the simplest platform sets on each node: four names that count nodes, and where to meet.

    Raises InstallationError where they cannot meet on this machine.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # sends nothing
        except OSError as error:
            raise InstallationError(
                Phrase("this machine does not reach itself at 127.0.0.1: {problem}", problem=error.strerror),
                "bring up its loopback interface: ip link set lo up",
            ) from error
    with ports.listen(0) as one, ports.listen(0) as other:
        master_port, meeting_port = one.getsockname()[1], other.getsockname()[1]
    return [
        {
            "WORLD_SIZE": str(nodes),
            "RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
            "INIT_MASTER_PORT": str(meeting_port),
        }
        for rank in range(nodes)
    ]


def node_variables(
    machine: Hardware, nodes: int, nproc_per_node: int, console: Console
) -> list[dict[str, str]]:
    """Split the machine among the nodes: GPUs where there is at least one for each, else CPUs alone."""
    gpus = [gpu.uuid if gpu.mig else str(gpu.index) for gpu in machine.gpus.devices]
    each = len(gpus) // nodes
    threads = max(1, int(machine.host.cpus // (nodes * nproc_per_node)))
    # Every node is this machine: the loopback interface reaches them all, whatever its name resolves to.
    common = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    if each:
        return [
            {**common, "CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * each : (rank + 1) * each])}
            for rank in range(nodes)
        ]
    if gpus:
        console.tell(event("gpus-not-split", gpus=len(gpus), nodes=nodes))
    return [{**common, "CUDA_VISIBLE_DEVICES": ""} for _ in range(nodes)]


def entrypoint(root: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command a platform would start, and variables that make it use this interpreter.

    The shell entrypoint takes the environment that is active before any other; an interpreter that is no
    environment's own ``bin/python3`` is started directly.
    """
    script, own = root / "start_multinode_platform.sh", Path(sys.prefix, "bin", "python3")
    if script.is_file() and own.is_file() and own.samefile(sys.executable):
        return (str(script),), {"VIRTUAL_ENV": sys.prefix}
    return (sys.executable, str(PACKAGE / "__main__.py"), "run"), {}


def conclude(written: Sequence[Path], plan: LaunchPlan, nodes: int, code: int, duration_s: float) -> None:
    """Say how the rehearsal ended and where to go on, where the nodes speak: on standard output.

    ``written`` are logs that are new in the folder, those of other launches that began meanwhile among them.
    """
    own = [log for log in written if _is_of(plan, log)]
    rank = first_failed(log.with_suffix(".json") for log in own) if code else None
    speaking = Console(number=STDOUT)
    rows, logs = [("nodes", str(nodes)), ("trained", _trained(plan))], plan.log_path.parent
    if rank is not None:
        log = next((log for log in own if node_of(log.name) == rank), None)
        ended = event("simulated-node-failed", node=rank, log=str(log or "none was written"))
        last = {one.id: one for one in (events_of(log) or () if log else ())}
        if "verdict" in last:
            verdict = Verdict.told(last["verdict"].fields)
            rows += [("cause", verdict.short_title()), ("fix", verdict.to_do())]
        elif "node-hung" in last and "no-progress" in last:
            rows.append(("cause", event_line(last["no-progress"])))
        rows += [
            ("log", str(log or "")),
            ("next", f"platform-launch logs {logs} --level WARN; platform-launch why {logs}"),
        ]
    elif code == 0:
        folder = plan.log_path.parent
        ended = event("simulation-finished", nodes=nodes, logs=str(folder), duration_s=duration_s)
        rows += [
            ("logs", f"platform-launch logs {folder}"),
            ("next", "the same command on each node, with run for simulate"),
        ]
    else:  # told to end
        speaking.close()
        return
    speaking.tell(ended)
    failed = Phrase("node {rank} failed first", rank=rank)
    title = Phrase("all {nodes} nodes finished", nodes=nodes) if rank is None else failed
    speaking.banner(title, rows, ended.level)
    speaking.close()


def _is_of(plan: LaunchPlan, log: Path) -> bool:
    """Whether the launch that wrote a log was one of this job's nodes: nobody else has its master port."""
    master = f"{plan.topology.master_addr}:{plan.topology.master_port}"
    return any(
        event.id == "launch-opened" and event.fields.get("master") == master for event in events_of(log) or ()
    )


def _trained(plan: LaunchPlan) -> str:
    config = f" with {plan.training.config}" if plan.training.config else ""
    return f"{plan.training.program.title}{config}"
