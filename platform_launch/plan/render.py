"""A plan as text: aligned sections for people, exports for a shell, JSON for programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

import click

from platform_launch.confidential import masked
from platform_launch.console.languages import current, translate
from platform_launch.hardware import NicDistance
from platform_launch.plan.launch_plan import LaunchPlan
from platform_launch.plan.network_order import RankOrder
from platform_launch.plan.request import Form
from platform_launch.text import Phrase, columns, counted, either, escaped, joined, padded, wrapped
from platform_launch.topology import Topology

Row = tuple[str, str, str]

_NARROWEST = 30  # columns of a reason, even if they exceed the terminal


def render_json(plan: LaunchPlan) -> str:
    """Return the plan as one JSON document."""
    return json.dumps(plan.as_dict(), indent=2, ensure_ascii=False)


def render_shell(plan: LaunchPlan) -> str:
    """Return the child's environment as POSIX shell, safe to ``eval``; the command follows as a comment.

    It includes what launchers get as flags, so that something else can be started with the same variables.
    """
    topology = plan.topology
    values = {
        "MASTER_ADDR": topology.master_addr,
        "MASTER_PORT": str(topology.master_port),
        "NNODES": str(topology.nnodes),
        "NODE_RANK": str(topology.node_rank),
        "NPROC_PER_NODE": str(topology.nproc_per_node),
        **{variable.name: variable.value for variable in (*plan.kept, *plan.env)},
    }
    lines = [f"unset {removal.name}" for removal in plan.removed if _is_name(removal.name)]
    lines = [line for line in lines if line.removeprefix("unset ") not in values]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items() if _is_name(name)]
    # A newline inside an argument would end the comment and run what follows it.
    command = shlex.join(plan.argv).replace("\n", "\n# ")
    return "\n".join([*lines, f"# {command}"])


def render_table(plan: LaunchPlan, width: int) -> str:
    """Return the plan as sections of aligned lines, in the order of the launch's stages.

    Values are never wrapped, so that they can be copied. A reason that does not fit into ``width`` columns
    moves to separate lines, wrapped between words. Has terminal styles, which click.echo strips if necessary.
    """
    sections = [
        ("Topology", [*topology_rows(plan.topology), *_rank_order_row(plan.rank_order)]),
        ("Hardware", hardware_rows(plan)),
        ("Training", training_rows(plan)),
        ("Exported", [(variable.name, variable.value, variable.reason) for variable in plan.env]),
        ("Set outside", [(kept.name, masked(kept.name, kept.value), "") for kept in plan.kept]),
        ("Removed", [(removal.name, "", removal.reason) for removal in plan.removed]),
    ]
    parts = [_section(title, rows, width) for title, rows in sections if rows]
    command = click.style(translate("Command"), bold=True) + f"\n  {command_text(plan.argv)}"
    return "\n\n".join([*parts, command])


def _section(title: str, rows: list[Row], width: int) -> str:
    shown = [
        (translate(name), translate(value) if isinstance(value, Phrase) else value, translate(note))
        for name, value, note in rows
    ]
    names = max(columns(name) for name, _, _ in shown)
    lines = [click.style(translate(title), bold=True)]
    fitting = [columns(value) for _, value, note in shown if names + columns(value + note) + 6 <= width]
    values = max(fitting, default=0)
    for name, value, note in shown:
        line = f"  {padded(name, names)}  {escaped(value)}"
        if note and names + max(columns(value), values) + columns(note) + 6 <= width:
            line += " " * (values - columns(value)) + "  " + click.style(escaped(note), dim=True)
        elif note:
            margin = " " * (names + 4)
            opening, closing = ("(", ")") if current() == "en" else ("（", "）")
            broken = wrapped(f"{opening}{escaped(note)}{closing}", max(_NARROWEST, width - len(margin)))
            line += "".join(f"\n{margin}{click.style(part, dim=True)}" for part in broken)
        lines.append(line.rstrip())
    return "\n".join(lines)


def _is_name(text: str) -> bool:
    """Return whether a shell accepts a text as a variable's name; an environment can have others."""
    return text.isascii() and text.isidentifier()


def command_text(argv: Iterable[str]) -> str:
    """Return a command over several lines, one option with its value on each, safe to paste."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") or (lines[-1] and lines[-1][0].startswith("--") and len(lines[-1]) == 2):
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(shlex.join(line) for line in lines)


def topology_rows(topology: Topology) -> list[Row]:
    """Return name, value and source of each field of a topology."""
    source = topology.sources.get
    nproc = topology.nproc_per_node
    rows = [
        ("platform", Phrase(topology.platform), source("platform", "")),
        ("nodes", str(topology.nnodes), source("nnodes", "")),
        ("node rank", _role(topology), source("node_rank", "")),
        ("master address", topology.master_addr, source("master_addr", "")),
        ("master port", str(topology.master_port), source("master_port", "")),
        (
            "processes per node",
            Phrase("unknown") if nproc is None else str(nproc),
            source("nproc_per_node", ""),
        ),
        (
            "world size",
            Phrase("unknown") if topology.world_size is None else counted(topology.world_size, "process"),
            Phrase("nodes × processes per node"),
        ),
    ]
    if topology.hosts:
        rows.append(("hosts", joined(topology.hosts), source("hosts", "")))
    if topology.spares or topology.min_nodes is not None:
        moves = topology.places[1:]
        shown = (
            Phrase("the job moves to {places}", places=either(moves))
            if moves
            else Phrase("the others wait for it, then exit")
        )
        rows.append(("if node 0 is lost", shown, "" if moves else topology.why_not_moved))
    if topology.job_id:
        rows.append(("job", topology.job_id, source("job_id", "")))
    if topology.restart_count:
        rows.append(("restarts", str(topology.restart_count), source("restart_count", "")))
    return rows


def _rank_order_row(found: RankOrder | None) -> list[Row]:
    """Return how well the ranks follow the network's switches, if this node knows all of them."""
    if found is None:
        return []
    shown = Phrase("{now} of {edges} edges of a ring cross a switch", now=found.crossings, edges=found.edges)
    note = Phrase("no order has fewer")
    if found.warning is not None:
        note = Phrase(
            "{best} with --rank-order topology{shown}; topology.conf", best=found.best, shown=found.shown
        )
    return [("rank order", shown, note)]


def _role(topology: Topology) -> str:
    if topology.nnodes == 1:
        return "0"
    if topology.is_spare:
        return Phrase("{rank} (spare)", rank=topology.node_rank)
    return Phrase(
        "{rank} ({role})", rank=topology.node_rank, role="master" if topology.is_master else "worker"
    )


def hardware_rows(plan: LaunchPlan) -> list[Row]:
    """Return what was found on the machine, one line per kind."""
    hardware = plan.hardware
    gpus, host = hardware.gpus, hardware.host
    if gpus.devices:
        first = gpus.devices[0]
        same = all(gpu.name == first.name for gpu in gpus.devices)
        names = first.name if same else joined(sorted({gpu.name for gpu in gpus.devices}))
        size = "" if first.memory_gib is None else f", {first.memory_gib:.0f} GiB"
        shown = f"{len(gpus.devices)} × {names}{size}"
        driver = Phrase("driver {version}", version=gpus.driver) if gpus.driver else ""
        cuda = f"CUDA {gpus.cuda}" if gpus.cuda else ""
        rows: list[Row] = [("GPUs", shown, joined(filter(None, (gpus.source, driver, cuda))))]
    else:
        unseen = hardware.accelerator
        if unseen.vendor is None:
            rows = [("GPUs", Phrase("none, training on the CPU"), gpus.source)]
        else:
            rows = [("GPUs", Phrase("{described}, not counted", described=unseen.described), unseen.source)]
    limits = [Phrase("{cpus:g} CPUs", cpus=host.cpus)]
    for label, gib in (("memory", host.memory_gib), ("shared memory", host.shm_gib)):
        if gib is not None:
            limits.append(Phrase("{label} {gib:.1f} GiB", label=Phrase(label), gib=gib))
    rows.append(("host", host.hostname, joined(limits)))
    used = next((one.value for one in (*plan.kept, *plan.env) if one.name == "GLOO_SOCKET_IFNAME"), None)
    names = joined(interface.name for interface in hardware.interfaces)
    if used is not None and used != hardware.route_interface:
        rows.append(("network", used, Phrase("GLOO_SOCKET_IFNAME; this node has {names}", names=names)))
    elif names:
        route = (
            Phrase("{interface} is on the route to the master", interface=hardware.route_interface)
            if hardware.route_interface
            else ""
        )
        rows.append(("network", names, route))
    active = [port for port in hardware.hca_ports if port.active]
    if hardware.hca_ports:
        kinds = joined(sorted({port.link_layer for port in active}))
        rows.append(
            (
                "RDMA",
                Phrase("{active} of {ports} ports active", active=len(active), ports=len(hardware.hca_ports)),
                kinds,
            )
        )
    nearest: dict[int, NicDistance] = {}
    for one in sorted(hardware.nic_distances, key=lambda one: one.distance):
        nearest.setdefault(one.gpu, one)
    if nearest:
        shown = joined(f"{gpu}: {one.adapter} {one.distance.name}" for gpu, one in sorted(nearest.items()))
        rows.append(("GPU to adapter", shown, Phrase("PCI distance as in nvidia-smi topo")))
    return rows


def training_rows(plan: LaunchPlan) -> list[Row]:
    """Return the chosen files with the rule that chose them, and the resulting batch."""
    training = plan.training
    yaml = training.accelerate_yaml
    program = training.program
    words = (
        shlex.join([program.target, *program.arguments]) if program.form is Form.COMMAND else program.target
    )
    kind = Form.SCRIPT if program.form is Form.EXAMPLE else program.form
    rows = [("launcher", plan.launcher, ""), (kind.value, words, program.reason)]
    if program.form is Form.MODULE and program.source is not None:
        rows.append(("file", str(program.source), ""))
    if training.config is not None:
        rows.append(("config", str(training.config), training.rule))
    if yaml is not None:
        rows.append(("accelerate yaml", str(yaml.path), training.rule))
    if training.global_batch is not None:
        rows.append(
            ("global batch", str(training.global_batch), Phrase("batch per GPU × accumulation × world size"))
        )
    if training.gradient_accumulation_steps is not None:
        rows.append(("gradient accumulation", str(training.gradient_accumulation_steps), ""))
    if training.learning_rate is not None:
        rows.append(("learning rate", f"{training.learning_rate:g}", ""))
    if plan.binding.ranks:
        rows.append(("CPUs of ranks", plan.binding.shown, plan.binding.reason))
    elif len(plan.hardware.numa.nodes) > 1:
        rows.append(("CPUs of ranks", Phrase("not bound"), plan.binding.reason))
    rows.append(("log", str(plan.log_path), ""))
    return rows
