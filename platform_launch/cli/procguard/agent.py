"""``procguard agent``: runs one node of ProcGuard until it is stopped."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from platform_launch import __version__, hardware
from platform_launch.cli import completion
from platform_launch.cli.flags import seconds
from platform_launch.cli.procguard.extra import needs_procguard
from platform_launch.cli.quarantine import quarantine_file_option
from platform_launch.console import Console
from platform_launch.environment import Environment, hide_from_neighbours
from platform_launch.errors import HardwareError, InputError, UsageError, shown
from platform_launch.health.quarantine import node_name, quarantine_file
from platform_launch.text import Phrase, counted, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from platform_launch.hardware import Gpu
    from platform_launch.procguard.agent.worker import AgentLimits
    from platform_launch.procguard.api.wire import JoinRequest

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"[A-Za-z0-9_.:-]+")  # a name or an address of either kind
_MOST_ADDRESSES = 32
_MOST_LABELS = 32


@click.command("agent")
@click.option("--server", "url", required=True, metavar="URL", help="The server's address.")
@click.option("--node", metavar="NAME", help="This node's name (default: its short host name).")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of workers."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="A label of the node, such as h100; repeatable.",
)
@click.option(
    "--command", "command_line", default="", metavar="COMMAND", help="Command of groups that set none."
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="COMMAND",
    help="Start only this command; a trailing * allows any further words; repeatable.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Working directory of commands (default: the current one).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Where this agent keeps its state.",
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the join token."
)
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Certificate authority to trust for https.",
)
@seconds(
    "--orphan-after",
    "orphan_after_s",
    least=1,
    default=300,
    text="How long runs continue without an agent.",
)
@click.option("--no-observe", is_flag=True, help="Do not make runs inspectable.")
@quarantine_file_option
@click.option(
    "--leave-running", is_flag=True, help="Keep runs when this agent is stopped, for --orphan-after."
)
def command(
    url: str,
    node: str | None,
    workers: int,
    labels: tuple[str, ...],
    command_line: str,
    allowed: tuple[str, ...],
    directory: Path,
    state: Path | None,
    token_file: Path | None,
    ca_file: Path | None,
    orphan_after_s: float,
    no_observe: bool,
    quarantine: Path | None,
    leave_running: bool,
) -> int:
    """Register this node's workers, and start and stop what the server asks for.

    The join token comes from --token-file or PROCGUARD_JOIN_TOKEN. SIGTERM and Ctrl-C stop the node's runs
    cleanly; a second signal leaves them running.
    """
    with needs_procguard():
        from platform_launch.procguard.agent.connection import AgentConnection
    from platform_launch.hardware.use import GpuMeter
    from platform_launch.procguard.agent.machine import MachineMonitor, QuarantineWatch
    from platform_launch.procguard.agent.main import Agent
    from platform_launch.procguard.agent.state import StateFolder
    from platform_launch.procguard.agent.worker import AgentLimits

    env, console = Environment.of_this_process(), Console()
    _check_url(url, console)
    name = _node(node, env)
    limits = AgentLimits(
        directory=_directory(directory),
        command=_words(command_line, "--command"),
        allowed=_allowed(allowed, command_line),
        orphan_after_s=orphan_after_s,
        observe=not no_observe,
    )
    folder = StateFolder((state or _default_state(env, name)).absolute())
    folder.open()
    try:
        join = _join(name, folder.instance(), workers, _labels(labels), limits, env)
        token = _token(token_file, env)
        hide_from_neighbours("PROCGUARD_JOIN_TOKEN")
        connection = AgentConnection(url, join, folder, token=token, ca_file=ca_file)
        _report_start(console, join, url, limits, folder.path)
        gpus = _gpus(env, console)
        watch = QuarantineWatch(
            quarantine_file(env, quarantine),
            {name, node_name(env)},
            {gpu.uuid for gpu in gpus if gpu.uuid},
            console.print,
        )
        monitor = MachineMonitor(GpuMeter(gpus), limits.directory, folder.instance())
        Agent(
            folder,
            connection,
            env,
            limits,
            workers,
            monitor,
            watch,
            console.print,
            leave_running=leave_running,
        ).run()
    finally:
        folder.close()
    return 0


def _check_url(url: str, console: Console) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    usable = host is not None and _HOST.fullmatch(host)
    if parts.scheme not in ("http", "https") or not usable or parts.query or parts.fragment or parts.username:
        raise UsageError(
            Phrase("--server {url}: expected http://HOST:PORT or https://HOST:PORT", url=shown(url))
        )
    if parts.scheme == "http" and host not in _LOOPBACK:
        console.warn(
            Phrase(
                "{url} is not encrypted: whoever can change this traffic can run commands on this node; use "
                "https unless you trust the network",
                url=url,
            )
        )


def _node(given: str | None, env: Environment) -> str:
    from platform_launch.procguard.api.wire import NODE_PATTERN

    name = given if given is not None else env.hostname.split(".", 1)[0]
    if not re.fullmatch(NODE_PATTERN, name):
        where = Phrase("--node") if given is not None else Phrase("this machine's host name")
        raise UsageError(
            Phrase(
                "{where} {name} is not a node name: expected up to 64 letters, digits, dots and dashes",
                where=where,
                name=shown(name),
            ),
            "set another name with --node",
        )
    return name


def _words(command_line: str, flag: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command_line))
    except ValueError as error:
        raise UsageError(
            Phrase(
                "{flag} {command} cannot be split into words: {problem}",
                flag=flag,
                command=shown(command_line),
                problem=error,
            ),
            "close every quotation mark",
        ) from error


def _allowed(patterns: tuple[str, ...], command_line: str) -> tuple[str, ...] | None:
    """Return the commands the agent is limited to, None for no limit. Raises UsageError."""
    from platform_launch.procguard.agent.check import ANY, is_allowed

    for pattern in patterns:
        if _words(pattern, "--allow") in ((), (ANY,)):
            raise UsageError(
                Phrase("--allow {pattern} contains no command", pattern=shown(pattern)),
                "omit --allow to allow any command",
            )
    if patterns and command_line and not is_allowed(_words(command_line, "--command"), patterns):
        raise UsageError(
            Phrase("--command {command} is not allowed by any --allow", command=shown(command_line)),
            "add it with --allow",
        )
    return patterns or None


def _directory(given: Path) -> Path:
    if not given.is_dir():
        raise InputError(
            Phrase("--directory {folder}: no such folder", folder=given), "create it, or choose another"
        )
    return given.absolute()


def _default_state(env: Environment, node: str) -> Path:
    """Return a folder for this node alone: nodes often share a home folder."""
    base = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME", "/")) / ".local" / "state")
    return Path(base) / "procguard" / f"agent-{node}"


def _token(file: Path | None, env: Environment) -> str | None:
    from platform_launch.procguard.api.wire import JOIN_TOKEN

    if file is None:
        found = env.text(JOIN_TOKEN)
        token, source = (found.value, JOIN_TOKEN) if found else (None, "")
    else:
        try:
            token, source = file.read_text(encoding="utf-8").strip(), f"--token-file {file}"
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else Phrase("not a text file")
            raise InputError(
                Phrase("--token-file {file}: {problem}", file=file, problem=reason),
                "expected a file with the join token",
            ) from error
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise InputError(
            Phrase("{source} contains no token: expected one line of letters and digits", source=source)
        )
    return token


def _labels(given: tuple[str, ...]) -> tuple[str, ...]:
    from platform_launch.procguard.api.wire import NODE_PATTERN

    for label in given:
        if not re.fullmatch(NODE_PATTERN, label):
            raise UsageError(
                Phrase(
                    "--label {label}: expected up to 64 letters, digits, dots and dashes", label=shown(label)
                )
            )
    return tuple(dict.fromkeys(given))[:_MOST_LABELS]


def _join(
    node: str, instance: str, workers: int, labels: tuple[str, ...], limits: AgentLimits, env: Environment
) -> JoinRequest:
    from platform_launch.hardware import network
    from platform_launch.procguard.api.wire import JoinRequest

    addresses = [address for interface in network.find() for address in interface.addresses]
    return JoinRequest(
        node=node,
        instance=instance,
        workers=workers,
        labels=labels,
        hostname=env.hostname[:400],
        addresses=tuple(addresses[:_MOST_ADDRESSES]),
        version=__version__,
        command=limits.command,
        allowed=limits.allowed,
    )


def _gpus(env: Environment, console: Console) -> Sequence[Gpu]:
    """Return this node's GPUs, none if the driver does not work."""
    try:
        return hardware.detect(env).gpus.monitored
    except (HardwareError, UsageError) as error:
        console.warn(Phrase("GPU use will not be shown: {problem}", problem=Phrase.of(error.message)))
        return ()


def _report_start(console: Console, join: JoinRequest, url: str, limits: AgentLimits, state: Path) -> None:
    """Print what this agent will do, and what it will not."""
    first, last = f"{join.node}-0", f"{join.node}-{join.workers - 1}"
    names = first if first == last else f"{first} … {last}"
    console.title(f"ProcGuard agent {join.version}: {join.node}")
    console.info(
        Phrase(
            "{workers} ({names}), server {url}", workers=counted(join.workers, "worker"), names=names, url=url
        )
    )
    console.info(
        Phrase("commands start in {folder}; state is in {state}", folder=limits.directory, state=state)
    )
    if limits.command:
        console.info(Phrase("command of groups without one: {command}", command=shlex.join(limits.command)))
    if limits.allowed is None:
        console.info("no limits: operators of the server can run any command here (limit it with --allow)")
    else:
        console.info(Phrase("limited to: {commands}", commands=joined(limits.allowed, "; ")))
