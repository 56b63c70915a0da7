"""``platform-launch wheel``: build DeepSpeed with its ops compiled, and check it on every node."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import click

from platform_launch.cli.flags import json_or_table, seconds
from platform_launch.cli.options import lang_option
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import InstallationError
from platform_launch.text import Phrase, joined, padded
from platform_launch.wheels import installing
from platform_launch.wheels.report import NodeReport, differences, read

_PYTHON = click.option(
    "--python",
    metavar="FILE",
    default=sys.executable,
    # Absolute, because pip runs in another folder; not resolved, because a venv's python is a link.
    callback=lambda _ctx, _option, value: os.path.abspath(value) if "/" in value else value,  # noqa: PTH100
    help="Interpreter of the job's environment (default: this one).",
)


@click.group("wheel")
def command() -> None:
    """Build DeepSpeed with its ops compiled, install it, check it on every node."""


@command.command("build")
@click.option("--version", metavar="V", help="Version to build (default: the installed one, or the newest).")
@click.option(
    "--source", type=click.Path(path_type=Path, file_okay=False), help="Build this checkout instead."
)
@click.option("--ops", default="cpu_adam,utils", show_default=True, metavar="A,B", help="Ops to compile.")
@click.option(
    "--arch",
    default="auto",
    show_default=True,
    metavar="LIST",
    help="GPU architectures, e.g. '8.0;9.0+PTX' or H100; auto: this node's.",
)
@click.option("--jobs", type=click.IntRange(1), help="Parallel compilers (default: by CPUs and memory).")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="Folder for wheel, note and log.",
)
@lang_option
def build(
    version: str | None, source: Path | None, ops: str, arch: str, jobs: int | None, output: Path
) -> int:
    """Build a wheel with the named ops compiled for this torch.

    Checks first for problems that would make the build fail late. Prints the wheel's path on standard output.
    """
    from platform_launch.wheels.build_wheel import WheelRequest, build_wheel

    request = WheelRequest(version, source, ops, arch, jobs, output)
    click.echo(build_wheel(request, Environment.of_this_process(), Console()))
    return 0


@command.command("install")
@click.argument("wheel", type=click.Path(path_type=Path))
@_PYTHON
@lang_option
def install(wheel: Path, python: str) -> int:
    """Install a wheel on this node, if it fits torch, Python and GPUs.

    On all nodes, from a shared folder: srun --ntasks-per-node=1 platform-launch wheel install WHEEL
    """
    installing.install(wheel, python, Environment.of_this_process(), Console())
    return 0


@command.command("check")
@_PYTHON
@seconds("--timeout", "timeout", least=1, default=120.0, text="Time limit.")
@json_or_table
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A.json B.json",
    help="Print the differences between two nodes' --format json output.",
)
@lang_option
def check(python: str, timeout: float, form: str, compare: tuple[Path, Path] | None) -> int:
    """Report which ops of this node's DeepSpeed are compiled.

    The others would be compiled during the job.

    With --compare, exits non-zero if the two nodes differ.
    """
    console = Console()
    if compare is not None:
        found = differences(read(compare[0]), read(compare[1]))
        for difference in found:
            click.echo(translate(difference))
        if not found:
            console.success("the two nodes have the same DeepSpeed, torch, CUDA and ops")
        return InstallationError.exit_code if found else 0
    node = installing.report_of_this_node(python, Environment.of_this_process(), timeout)
    if form == "json":
        click.echo(node.as_json())
    else:
        _print(node)
    installing.warn(node, console)
    return 0


def _print(node: NodeReport) -> None:
    gpus = joined(f"{count} × {name}" for name, count in Counter(node.gpus).items()) or Phrase("none")
    cuda = Phrase("CUDA {version}", version=node.cuda) if node.cuda else Phrase("no CUDA")
    rows: tuple[tuple[str, str], ...] = (
        ("deepspeed", Phrase("{version}, {backend} backend", version=node.deepspeed, backend=node.backend)),
        (
            "torch",
            Phrase("{torch}, {cuda}, Python {python}", torch=node.torch, cuda=cuda, python=node.python),
        ),
        ("GPUs", gpus),
        # The first of DeepSpeed's remarks; --format json has all of them.
        *(
            (
                Phrase("op {name}", name=op),
                Phrase(
                    "{state} {problem}", state=Phrase(state), problem=node.problems.get(op, "").split(";")[0]
                ),
            )
            for op, state in node.ops.items()
        ),
    )
    for name, value in rows:
        click.echo(f"{padded(translate(name), 26)} {translate(value)}".rstrip())
