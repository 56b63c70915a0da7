"""``procguard agent``: run the agent of one node until it is stopped."""

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
from platform_launch.launch.fitness import node_name, quarantine_file
from platform_launch.text import counted

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
    help="Label of the node, e.g. h100; repeatable.",
)
@click.option(
    "--command", "command_line", default="", metavar="COMMAND", help="For groups without a command."
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="COMMAND",
    help="Allow only this command; a final * matches any further arguments. Repeatable.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Working directory of commands (default: this one).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    shell_complete=completion.folders,
    help="Folder for this agent's state.",
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the join token."
)
@click.option("--ca-file", type=click.Path(path_type=Path), metavar="FILE", help="CA certificates for https.")
@seconds(
    "--orphan-after",
    "orphan_after_s",
    least=1,
    default=300,
    text="How long jobs run on without an agent.",
)
@click.option("--no-observe", is_flag=True, help="Do not observe the jobs' processes (no stacks, no hangs).")
@quarantine_file_option
@click.option(
    "--leave-running", is_flag=True, help="Jobs run on for --orphan-after when this agent is stopped."
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
    """Register this node's workers, and start and stop them for the server.

    The join token comes from --token-file or PROCGUARD_JOIN_TOKEN. TERM and Ctrl-C stop the node's jobs
    gracefully; a second one leaves them running.
    """
    with needs_procguard():
        from platform_launch.procguard.agent.connection import AgentConnection
    from platform_launch.hardware.use import GpuMeter
    from platform_launch.procguard.agent.machine import MachineMonitor
    from platform_launch.procguard.agent.main import Agent
    from platform_launch.procguard.agent.quarantine import QuarantineWatch
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
        _introduce(console, join, url, limits, folder.path)
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
        raise UsageError(f"--server {shown(url)}: expected http://HOST:PORT or https://HOST:PORT")
    if parts.scheme == "http" and host not in _LOOPBACK:
        console.warn(
            f"{url} is not encrypted: anyone who can change this traffic can run commands on this node; "
            "use https unless the network is your own"
        )


def _node(given: str | None, env: Environment) -> str:
    from platform_launch.procguard.api.wire import NODE_PATTERN

    name = given if given is not None else env.hostname.split(".", 1)[0]
    if not re.fullmatch(NODE_PATTERN, name):
        where = "--node" if given is not None else "this machine's host name"
        raise UsageError(
            f"{where} {shown(name)} is not a valid name: expected up to 64 letters, digits, dots and dashes",
            "choose another with --node NAME",
        )
    return name


def _words(command_line: str, flag: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command_line))
    except ValueError as error:
        raise UsageError(
            f"{flag} {shown(command_line)} cannot be split into arguments: {error}",
            "close all quotation marks",
        ) from error


def _allowed(patterns: tuple[str, ...], command_line: str) -> tuple[str, ...] | None:
    """Return the commands the agent is limited to, None for no limit. Raises UsageError for invalid ones."""
    from platform_launch.procguard.agent.check import ANY, is_allowed

    for pattern in patterns:
        if _words(pattern, "--allow") in ((), (ANY,)):
            raise UsageError(f"--allow {shown(pattern)} names no command", "leave --allow out to allow any")
    if patterns and command_line and not is_allowed(_words(command_line, "--command"), patterns):
        raise UsageError(
            f"--command {shown(command_line)} is not among the commands that --allow lists", "add it there"
        )
    return patterns or None


def _directory(given: Path) -> Path:
    if not given.is_dir():
        raise InputError(f"--directory {given}: no such folder", "create it, or name another")
    return given.absolute()


def _default_state(env: Environment, node: str) -> Path:
    """Return a folder for this node alone: the home folder is often shared by all nodes."""
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
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InputError(f"--token-file {file}: {reason}", "name a file with the join token") from error
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise InputError(f"{source} does not hold a token: expected one line of letters and digits")
    return token


def _labels(given: tuple[str, ...]) -> tuple[str, ...]:
    from platform_launch.procguard.api.wire import NODE_PATTERN

    for label in given:
        if not re.fullmatch(NODE_PATTERN, label):
            raise UsageError(f"--label {shown(label)}: expected up to 64 letters, digits, dots and dashes")
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
    """Return this node's GPUs, none without a working driver."""
    try:
        return hardware.detect(env).gpus.monitored
    except (HardwareError, UsageError) as error:
        console.warn(f"the use of GPUs will not be shown: {error.message}")
        return ()


def _introduce(console: Console, join: JoinRequest, url: str, limits: AgentLimits, state: Path) -> None:
    """Print what this agent will do, and what it is limited to."""
    first, last = f"{join.node}-0", f"{join.node}-{join.workers - 1}"
    workers = f"worker {first}" if first == last else f"workers {first} to {last}"
    console.title(f"ProcGuard agent {join.version}: node {join.node}, {counted(join.workers, 'worker')}")
    console.info(f"{workers} of {url}")
    console.info(f"commands start in {limits.directory}; this agent's state is in {state}")
    if limits.command:
        console.info(f"command of groups without one: {shlex.join(limits.command)}")
    if limits.allowed is None:
        console.info("not limited: operators of the server can run any command here (--allow limits it)")
    else:
        console.info(f"limited to: {'; '.join(limits.allowed)}")
