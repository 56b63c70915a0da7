"""``platform-launch job --server-check``: ask the scheduler whether it would accept the file.

Nothing is submitted. Only the scheduler knows its rules, webhooks and quotas. Its own client asks it, with
the user's permissions and context. PodSecurity, quotas, limit ranges and pod webhooks apply to pods only, so
a pod of each template is checked as well.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import InputError, InstallationError, UsageError
from platform_launch.jobs.manifest import manifest, pods
from platform_launch.supervise.capture import TIMED_OUT, Answer, capture
from platform_launch.supervise.processes import Command
from platform_launch.text import Phrase, counted

_LIMIT_S = 60.0
_WARNING = "Warning:"  # kubectl's prefix for the server's warnings
_REACH = {"kubectl": ("kubectl", "get", "--raw", "/version"), "sbatch": ("sinfo", "--noheader")}
"""Commands that show whether the server can be reached, and need no permissions there."""

_ASK = {"kubectl": ("apply", "--dry-run=server", "-f"), "sbatch": ("--test-only",)}
"""Arguments that check a file as if it were submitted."""

_RUNTIMES = "trainingruntimes.trainer.kubeflow.org"


def ask(target: str, text: str, console: Console) -> None:
    """Print the scheduler's answer to the file and to its pods. Raises InputError if it rejects them.

    Raises UsageError if no server can be reached, InstallationError if its client is not installed.
    """
    client = "sbatch" if target == "slurm" else "kubectl"
    env = Environment.of_this_process().inherited()
    if shutil.which(client, path=env.get("PATH", "")) is None:
        raise InstallationError(
            Phrase("{client} is not on PATH, but --server-check needs it", client=client),
            "run it where you submit jobs; --check needs no scheduler",
        )
    reached = capture(Command(_REACH[client], env), timeout_s=_LIMIT_S)
    if reached.exit_code:
        _show(reached, console)
        raise UsageError(
            Phrase(
                "{client} cannot reach a server: {command} {ended}",
                client=client,
                command=" ".join(_REACH[client]),
                ended=_ended(reached),
            ),
            "kubectl config get-contexts lists the clusters it knows; nothing was submitted"
            if client == "kubectl"
            else "nothing was submitted",
        )
    pending = _pending_runtime(text, env) if target == "trainjob" else ""
    if pending:
        console.warn(
            "the TrainJob itself was not checked: Trainer refuses it until its TrainingRuntime exists"
        )
    warnings = bool(pending) + _submit_dry(
        client,
        pending or text,
        env,
        console,
        Phrase("{server} rejects this job", server=_server(client, env)),
    )
    if client == "kubectl" and (of_pods := pods(text)):
        refusal = Phrase("{server} accepts this job, but rejects its pods", server=_server(client, env))
        warnings += _submit_dry(client, of_pods, env, console, refusal)
    if warnings:
        console.warn(
            Phrase(
                "{server} would accept this job, with the {warnings} above; nothing was submitted",
                server=_server(client, env),
                warnings=counted(warnings, "warning"),
            )
        )
    else:
        console.success(
            Phrase("{server} would accept this job; nothing was submitted", server=_server(client, env))
        )


def _pending_runtime(text: str, env: dict[str, str]) -> str:
    """Return the file without its TrainJob, or nothing if the cluster has its TrainingRuntime already."""
    documents = list(yaml.safe_load_all(text))
    runtimes = [document for document in documents if document["kind"] == "TrainingRuntime"]
    if not runtimes:
        return ""
    own = runtimes[0]["metadata"]
    namespace = ("--namespace", own["namespace"]) if "namespace" in own else ()
    get = ("kubectl", "get", _RUNTIMES, own["name"], *namespace, "--ignore-not-found", "--output=name")
    found = capture(Command(get, env), timeout_s=_LIMIT_S)
    if found.exit_code or found.stdout.strip():
        return ""
    return manifest((), *(document for document in documents if document["kind"] != "TrainJob"))


def _submit_dry(client: str, text: str, env: dict[str, str], console: Console, refusal: Phrase) -> int:
    """Check a file; return the number of warnings. Raises InputError that begins with ``refusal``."""
    with TemporaryDirectory(prefix="platform-launch-") as folder:
        file = Path(folder, "job")
        file.write_text(text, encoding="utf-8")
        answer = capture(Command((client, *_ASK[client], str(file)), env), timeout_s=_LIMIT_S)
    warnings = _show(answer, console)
    if answer.exit_code:
        raise InputError(
            Phrase(
                "{refusal}: {command} {ended}",
                refusal=refusal,
                command=" ".join((client, *_ASK[client])),
                ended=_ended(answer),
            ),
            "its answer is above; nothing was submitted",
        )
    return warnings


def _show(answer: Answer, console: Console) -> int:
    """Print the client's output without control characters; return the number of its warnings."""
    warnings = 0
    for line in f"{answer.stdout}\n{answer.stderr}".splitlines():
        plain = "".join(character for character in line if character.isprintable()).strip()
        if plain.startswith(_WARNING):
            warnings += 1
            console.warn(plain.removeprefix(_WARNING).strip())
        elif plain:
            console.info(plain)
    return warnings


def _server(client: str, env: dict[str, str]) -> str:
    """Return the name of the server, so that users with several clusters see which one answered."""
    if client == "sbatch":
        return "Slurm"
    context = capture(Command(("kubectl", "config", "current-context"), env), timeout_s=_LIMIT_S)
    name = "".join(character for character in context.stdout if character.isprintable())
    return (
        Phrase("the cluster of context {name}", name=name)
        if name and not context.exit_code
        else Phrase("the cluster")
    )


def _ended(answer: Answer) -> str:
    if answer.exit_code == TIMED_OUT:
        return Phrase("did not answer in {limit:g} s", limit=_LIMIT_S)
    return Phrase("returned {code}", code=answer.exit_code)
