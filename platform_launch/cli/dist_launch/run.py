"""``dist-launch run``: run a script on all nodes."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from platform_launch.cli import completion
from platform_launch.cli.dist_launch import options as own
from platform_launch.cli.flags import seconds
from platform_launch.console import Console, languages
from platform_launch.console.languages import translate
from platform_launch.dist_launch.broker_client import send_request
from platform_launch.dist_launch.cluster import WaitingCluster
from platform_launch.dist_launch.job_request import JobRequest
from platform_launch.dist_launch.run_ending import run_ending
from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.supervise.watch import DEFAULT_GRACE_S
from platform_launch.text import Phrase, padded

_LONGEST_LINE = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SSH_FLAGS = ("--ssh-port", "--ssh-key", "--ssh-user")


class _ScriptFirst(click.Command):
    """Arguments after the script are the script's, except SSH's flags; with ``--`` before it, all of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate this command's arguments from the script's."""
        rest = super().parse_args(ctx, list(args))
        words: tuple[str, ...] = ctx.params["arguments"]
        script_at = len(args) - len(words) - 1
        if script_at > 0 and args[script_at - 1] == "--":
            return rest
        kept: list[str] = []
        pending = list(words)
        while pending and pending[0] != "--":
            word, equals, value = pending[0].partition("=")
            if word in _SSH_FLAGS and (equals or len(pending) > 1):
                ctx.params[word[2:].replace("-", "_")] = value if equals else pending[1]
                pending = pending[1 if equals else 2 :]
            else:
                kept.append(pending.pop(0))
        ctx.params["arguments"] = (*kept, *pending)
        return rest


@click.command("run", cls=_ScriptFirst, context_settings={"allow_interspersed_args": False})
@click.option("--nodes", metavar="RANKS", help="Only on these nodes, e.g. 0,2-3.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Add a variable on all nodes.")
@click.option("--copy", is_flag=True, help="Copy the script and its folder to the nodes.")
@click.option(
    "--name", default="default", show_default=True, help="Name of the job; several can run side by side."
)
@click.option("--keep-going", is_flag=True, help="Let the other nodes continue if one fails.")
@click.option("--fold", is_flag=True, help="Print a line that several nodes print only once.")
@seconds("--grace-period", "grace_s", least=0, default=DEFAULT_GRACE_S, text="Time from SIGTERM to SIGKILL.")
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    shell_complete=completion.folders,
    help="Folder for one log per node (default: logs/ in the working directory).",
)
@click.option("--dry-run", is_flag=True, help="Print what would run where, and run nothing.")
@own.ssh_options
@click.argument("script", shell_complete=completion.files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.files)
def command(
    script: str,
    arguments: tuple[str, ...],
    variables: tuple[str, ...],
    copy: bool,
    name: str,
    log_dir: Path | None,
    dry_run: bool,
    **flags: Any,
) -> int:
    """Run SCRIPT on every node, with the variables of the node's own platform, and wait for all.

    Output is marked with the node's rank, and each node has its own log. The first failure stops the other
    nodes, and its exit code is returned. Ctrl-C stops the job; a second one kills it.
    """
    env = Environment.of_this_process()
    ssh = own.ssh(env, flags)
    folder, cluster = own.cluster(env)
    if not _NAME.fullmatch(name):
        raise UsageError(
            Phrase("--name {name}: expected letters, digits and ._-, 40 at most", name=shown(name))
        )
    path = _script(script)
    job = JobRequest(
        name=name,
        script=str(path),
        interpreter=_interpreter(path),
        arguments=arguments,
        directory=str(Path.cwd()),
        variables=dict(_variable(text) for text in variables),
        log_folder=str((log_dir or Path("logs")).absolute()),
        stamp=time.strftime("%Y%m%d-%H%M%S"),
        language=languages.current(),
        **flags,
    )
    if dry_run:
        _describe(job, cluster, copy=copy)
        return 0
    if ssh.port is not None:
        Console().info(Phrase("SSH port {port} ({port_source})", port=ssh.port, port_source=ssh.port_source))
    request = {"do": "run", "job": asdict(job), "archive": "", "ssh": own.as_request(ssh)}
    if not copy:
        return _closed(job, send_request(folder, request))
    from platform_launch.dist_launch.code_copy import packed

    with packed(path.parent, folder) as archive:
        return _closed(job, send_request(folder, {**request, "archive": str(archive)}))


def _closed(job: JobRequest, answer: Mapping[str, Any]) -> int:
    """Report how the job ended, how long it took, where its logs are, and what to do next."""
    code = int(answer["exit_code"])
    if answer["ending"] is None:  # it was stopped before it began
        return code
    ended = run_ending(**answer["ending"])
    rows = [
        ("job", job.name),
        ("script", shlex.join([job.script, *job.arguments])),
        ("logs", f"platform-launch logs {shlex.quote(job.log_folder)}"),
    ]
    if code:
        rows.append(("why", f"platform-launch why {shlex.quote(job.log_folder)}"))
    console = Console()
    console.report(ended)
    console.banner(translate(ended), rows, ended.level)
    console.close()
    return code


def _script(name: str) -> Path:
    path = Path(name).absolute()
    if not path.is_file():
        raise InputError(
            Phrase("there is no script {name} in {cwd}", name=shown(name), cwd=Path.cwd()),
            "run takes a file; see dist-launch ssh all",
        )
    return path


def _interpreter(script: Path) -> tuple[str, ...]:
    """Return the interpreter of a script: none if it is executable, else Python or bash, by its name."""
    try:
        with script.open("rb") as file:
            start = file.readline(_LONGEST_LINE)
    except OSError as error:
        raise InputError(
            Phrase("{script} cannot be read: {problem}", script=script, problem=error.strerror)
        ) from error
    executed = os.access(script, os.X_OK) and start.startswith((b"#!", b"\x7fELF"))
    by_python = script.suffix == ".py" and not executed
    if start.endswith(b"\r\n") and not by_python:
        mend = f"sed -i 's/\\r$//' {shlex.quote(str(script))}"
        raise InputError(
            Phrase(
                "{script} has Windows line endings: a shell would read a carriage return in each line",
                script=script,
            ),
            mend,
        )
    return () if executed else ("python3",) if by_python else ("bash",)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name) or "\0" in value:
        raise UsageError(Phrase("--env {text}: expected NAME=VALUE", text=shown(text)))
    return name, value


def _describe(job: JobRequest, cluster: WaitingCluster, *, copy: bool) -> None:
    added = [f"{name}={shlex.quote(value)}" for name, value in job.variables.items()]
    chosen = cluster.chosen(job.nodes)
    folder = Phrase("a copy of {folder}", folder=Path(job.script).parent) if copy else job.directory
    more = " ".join(added)
    variables = Phrase("each node's own, plus {more}", more=more) if more else Phrase("each node's own")
    note = job.reminder_about_nodes(len(chosen), len(cluster.members))
    rows = (
        (Phrase("command:"), shlex.join([*job.interpreter, job.script, *job.arguments])),
        (Phrase("folder:"), folder),
        (Phrase("variables:"), variables),
        (Phrase("logs:"), job.log_folder),
        *([(Phrase("note:"), note)] if note else []),
        *((Phrase("on:"), member.place) for member in chosen),
    )
    for label, text in rows:
        shown_text = translate(text) if isinstance(text, Phrase) else text
        click.echo(f"{padded(translate(label), 10)} {shown_text}")
