"""``platform-launch inspect``: what all ranks of a running job are doing now."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from platform_launch.cli.flags import json_or_table
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import print_json
from platform_launch.console import Console, languages
from platform_launch.console.languages import translate
from platform_launch.errors import InputError, LaunchError, shown_list
from platform_launch.hardware.storage import temporary_folder
from platform_launch.observe import control
from platform_launch.observe.words import message
from platform_launch.sentences import Sentence
from platform_launch.text import Phrase, counted, escaped, joined
from platform_launch.why.sources import job_of


@click.command("inspect")
@click.argument("job", required=False)
@click.option("--stacks", is_flag=True, help="Show the whole stacks of every rank.")
@json_or_table
@lang_option
def command(job: str | None, stacks: bool, form: str) -> int:
    """Show what all ranks of a running job are doing now. Run it on any node of the job.

    Without JOB: all jobs of this user that run on this machine.

    kubectl exec NAME-0 -- platform-launch inspect
    """
    language = "en" if form == "json" else languages.current()
    answers = _of_job(job, list(running_launches(temporary_folder(), language).values()))
    if form == "json":
        documents = [_document(answer) for answer in answers]
        print_json(documents if len(documents) > 1 else documents[0])
        return 0
    for number, answer in enumerate(answers):
        for line in ("", *_lines(answer, stacks=stacks))[not number :]:
            click.echo(line)
    return 0


def _of_job(job: str | None, answers: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the answers of one job's launches, or of all. Raises InputError if there are none."""
    found = [answer for answer in answers if job in (None, _job(answer))]
    if not found:
        running = shown_list(sorted({_job(answer) or "?" for answer in answers}))
        raise InputError(
            Phrase(
                "no job {job!r} runs on this machine: expected one of {running}", job=job, running=running
            ),
            "run this on a node of the job, in its container and as its user",
        )
    return found


def _job(answer: Mapping[str, object]) -> str | None:
    return job_of(Path(str(answer.get("log", ""))).name)


def _document(answer: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON form of an answer, without the templates of its lines."""

    def public(part: Mapping[str, object]) -> dict[str, object]:
        return {name: one for name, one in part.items() if not name.endswith(("sentences", "_phrases"))}

    finding = answer.get("finding")
    document = {"job": _job(answer), **public(answer)}
    return document | ({"finding": public(finding)} if isinstance(finding, dict) else {})


def chosen_launch(job: str | None) -> tuple[Path, dict[str, object]]:
    """Return the socket and the answer of the requested job. Raises InputError unless it is exactly one."""
    launches = running_launches(temporary_folder())
    answers = _of_job(job, list(launches.values()))
    if len(answers) > 1:
        names = shown_list(sorted({_job(answer) or "?" for answer in answers}))
        raise InputError(
            Phrase("several jobs run on this machine: {running}", running=names),
            "add the name of one of them",
        )
    return next((path, answer) for path, answer in launches.items() if answer is answers[0])


def ask_launches(temporary: Path) -> list[dict[str, object]]:
    """Ask the launches on this machine. Raises InputError if there is none, LaunchError if none answers."""
    return list(running_launches(temporary).values())


def running_launches(temporary: Path, language: str = "en") -> dict[Path, dict[str, object]]:
    """Return the answers of the launches on this machine by socket, one per job; their stacks in a language.

    Raises as :func:`ask_launches`.
    """
    answers: dict[Path, dict[str, object]] = {}
    problems: list[str] = []
    for path in control.find_sockets(temporary):
        try:
            answer = control.ask(path, language=language)
        except (OSError, ValueError) as error:
            problems.append(Phrase("{launch}: {problem}", launch=path.parent.name, problem=str(error)))
            continue
        if answer is None:
            continue
        try:
            _processes(answer)
        except (KeyError, TypeError):
            problems.append(Phrase("{launch}: unexpected form of answer", launch=path.parent.name))
        else:
            answers[path] = answer
    if not answers and problems:
        raise LaunchError(
            Phrase(
                "the launch on this machine does not answer: {problems}",
                problems=joined(problems, "; "),
            ),
            "py-spy dump --pid PID shows the stack of one process",
        )
    if not answers:
        raise InputError(
            Phrase(
                "no running launch of this user was found below {temporary}: expected one without "
                "--no-observe",
                temporary=temporary,
            ),
            "run this on a node of the job, in its container and as its user",
        )
    for problem in problems:
        Console().warn(problem)
    jobs = {_processes(answers[path]): path for path in reversed(answers)}
    return {path: answers[path] for path in reversed(jobs.values())}


def _processes(answer: Mapping[str, object]) -> str:
    """Return a key that identifies a job: two nodes of one job on one machine give the same answer."""
    nodes = answer.get("nodes")
    found = nodes if isinstance(nodes, list) else []
    pids = [[node["host"], [rank["state"]["pid"] for rank in node["ranks"]]] for node in found]
    return json.dumps(pids) if any(pids) else str(id(answer))


def _lines(answer: Mapping[str, object], *, stacks: bool) -> list[str]:
    found, still = answer.get("nodes"), answer.get("still_s")
    nodes = found if isinstance(found, list) else []
    ranks = counted(sum(len(node["ranks"]) for node in nodes), "rank")
    since = Phrase("progress unknown")
    if isinstance(still, float):
        since = Phrase("last progress {still:.0f} s ago", still=still)
    width = sys.maxsize if stacks else 200
    names = ("stack_lines" if stacks else "lines", "memory_lines", "cost_line", "health_lines")
    findings = _translated(answer, "finding_lines") + _translated(answer, "slow_lines")
    findings += [text[:width] for name in names for text in _translated(answer, name)]
    headline = Phrase(
        "{ranks} on {nodes}; {since}", ranks=ranks, nodes=counted(len(nodes), "node"), since=since
    )
    if job := _job(answer):
        headline = Phrase("job {job}: {headline}", job=escaped(job), headline=headline)
    if "log" in answer:
        headline = Phrase("{headline}; log {log}", headline=headline, log=escaped(str(answer["log"])))
    return [translate(headline), *findings]


def _translated(answer: Mapping[str, object], part: str) -> list[str]:
    """Return the lines of a part in this process's language, if the launch sent their templates."""
    texts, stem = _texts(answer.get(part)), part.removesuffix("s")
    for number, document in enumerate(_as_many(answer.get(f"{stem}_sentences"), texts)):
        with suppress(ValueError, KeyError):
            texts[number] = translate(message(Sentence.read(document)))
    for number, document in enumerate(_as_many(answer.get(f"{stem}_phrases"), texts)):
        with suppress(ValueError):
            texts[number] = translate(Phrase.read(document))
    return texts


def _as_many(documents: object, texts: list[str]) -> list[object]:
    return documents if isinstance(documents, list) and len(documents) == len(texts) else []


def _texts(value: object) -> list[str]:
    """Return the lines of a part of the answer, which another version's launch may lack."""
    texts = [str(one) for one in value] if isinstance(value, list) else [str(value)] if value else []
    return [escaped(text) for text in texts]  # root may be asking another user's launch
