"""``platform-launch drill``: inject faults into a script on simulated nodes, to see whether it survives."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from platform_launch.cli.flags import json_or_table, seconds
from platform_launch.cli.output import print_json
from platform_launch.cli.simulate import WithOptionsOfRun, read_run_options, value_for_run
from platform_launch.console import Console, languages
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import UsageError
from platform_launch.project import logs_folder
from platform_launch.text import Phrase, columns, padded

if TYPE_CHECKING:
    from platform_launch.simulation.drill_judge import FaultResult, SeenStart

# What the nodes of a drill are started with, before the user's own options.
_GRACE_S = "10"
_FAULTS = ("kill", "term", "save", "disk", "truncate")


@click.command(
    "drill",
    cls=WithOptionsOfRun,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.option("--nodes", type=click.IntRange(1, 8), default=2, show_default=True, help="Nodes to start.")
@click.option(
    "--fault",
    "faults",
    type=click.Choice(_FAULTS),
    multiple=True,
    help="Try only this fault; repeatable (default: all).",
)
@seconds(
    "--timeout",
    "timeout_s",
    least=1,
    default=300,
    text="Longest time without a step, and until the first checkpoint; a run that exceeds it counts as hung.",
)
@json_or_table
@click.argument(
    "run_options", nargs=-1, type=click.UNPROCESSED, metavar="[run options]", shell_complete=value_for_run
)
def command(
    nodes: int, faults: tuple[str, ...], timeout_s: float, form: str, run_options: tuple[str, ...]
) -> int:
    """Test on this machine whether a script survives faults.

    Kills a rank, sends SIGTERM, kills a rank while it saves, fills the disk during a save, and truncates the
    newest checkpoint. After each fault, the script is started again, and the result is reported. Takes the
    options of `run`.

    \b
    platform-launch drill --launcher torchrun --script train.py -- --steps 200 --save-every 20
    platform-launch drill --script train.py -- --output-dir {folder}

    The job starts in an empty folder, so relative paths refer to it. If an argument contains {folder}, it is
    replaced by the checkpoint folder, and the job starts in the working directory.

    Exit code 0: the script survived every fault. 1: it did not.
    """
    from platform_launch.simulation.drill import PLACEHOLDER, Drill
    from platform_launch.simulation.drill_start import DrilledJob
    from platform_launch.supervise.processes import fill_closed_descriptors
    from platform_launch.supervise.signals import Interrupted

    fill_closed_descriptors()
    values = read_run_options(run_options, "drill")
    for name in ("no_observe", "max_restarts", "spares", "min_nodes"):
        if values[name]:
            raise UsageError(
                Phrase(
                    "{flag} cannot be used with {command}",
                    flag=f"--{name.replace('_', '-')}",
                    command="drill",
                )
            )
    logs = Path(values["log_dir"] or logs_folder()).absolute() / time.strftime("drill-%Y%m%d-%H%M%S")
    arguments = click.get_current_context().meta["arguments"]
    here = Path.cwd()
    work = logs / "work"
    has_folder = any(PLACEHOLDER in word for word in arguments)
    env = Environment.of_this_process().inherited()
    env |= {languages.VARIABLE: languages.current()}
    if not has_folder and values["module"] is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), env.get("PYTHONPATH"))))
    words = (
        *("--nodes", str(nodes), "--grace-period", _GRACE_S, "--hang-after", str(timeout_s / 2)),
        *(_absolute(word, here) for word in run_options),
    )
    job = DrilledJob(
        words,
        tuple(_absolute(word.replace(PLACEHOLDER, str(work)), here) for word in arguments),
        env,
        here if has_folder else work,
        work,
        logs,
        timeout_s,
    )
    console = Console()
    results: list[FaultResult] = []
    try:
        with console.changing_line("drill") as show:
            drill = Drill(job, lambda what: show(translate(Phrase("drill: {what}", what=what))))
            seen = drill.run_without_fault()
            if not seen.is_stuck:
                results.extend(drill.results(seen, faults or _FAULTS))
    except Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        for folder in (work, logs / "kept"):
            shutil.rmtree(folder, ignore_errors=True)
    passed = not seen.is_stuck and all(result.passed for result in results)
    if form == "json":
        undisturbed = {
            "steps": len(seen.steps),
            "checkpoints": len(seen.saved_at),
            "hung": seen.is_stuck,
            "reason": seen.reason,
        }
        faults_json = [result.as_dict() for result in results]
        print_json({"passed": passed, "without_fault": undisturbed, "faults": faults_json, "logs": str(logs)})
    else:
        _print(seen, results, logs)
    return 0 if passed else 1


def _absolute(word: str, here: Path) -> str:
    """Return an argument with the file in it as an absolute path, unless the file is a checkpoint."""
    from platform_launch.observe.checkpoints import checkpoint_of

    name, equals, value = word.rpartition("=")
    path = here / value
    if not value or not path.is_file() or checkpoint_of(path) is not None:
        return word
    return f"{name}{equals}{path}"


def _print(seen: SeenStart, results: Sequence[FaultResult], logs: Path) -> None:
    from platform_launch.simulation.drill import FAULTS, WITHOUT

    rows: list[tuple[bool, str, list[Phrase]]] = []
    if seen.is_stuck:
        hung = Phrase("hung after step {step}: {reason}", step=seen.steps[-1].step, reason=seen.reason)
        rows.append((False, WITHOUT, [hung]))
    rows += [(result.passed, FAULTS[result.fault], result.lines()) for result in results]
    titles = [translate(title) for _, title, _ in rows]
    width = max(map(columns, titles)) + 2
    for (passed, _, lines), title in zip(rows, titles, strict=True):
        mark, lead = translate(Phrase("ok") if passed else Phrase("FAILED")), title
        for line in lines:
            click.echo(f"{padded(mark, 8)}{padded(lead, width)}{translate(line)}")
            mark = lead = ""
    number = sum(not passed for passed, _, _ in rows)
    click.echo(
        translate(
            Phrase("the script survived every fault; logs: {logs}", logs=logs)
            if not number
            else Phrase("{number} of {all} failed; logs: {logs}", number=number, all=len(rows), logs=logs)
        )
    )
