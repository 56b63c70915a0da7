"""``platform-launch inspect``: what all ranks of a running job are doing now."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import click

from platform_launch.cli.flags import json_or_table
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import print_json
from platform_launch.console import Console, languages
from platform_launch.console.languages import translate
from platform_launch.errors import InputError, LaunchError
from platform_launch.hardware.storage import temporary_folder
from platform_launch.observe import control
from platform_launch.observe.words import message
from platform_launch.sentences import Sentence
from platform_launch.text import Listed, Phrase, counted, escaped, joined
from platform_launch.why.sources import job_of

# What a launch said, with its pid and uid; launches by their sockets.
Answer: TypeAlias = Mapping[str, object]
Launches: TypeAlias = dict[Path, Answer]


@click.command("inspect")
@click.argument("job", required=False)
@click.option("--stacks", is_flag=True, help="Show the whole stacks of every rank.")
@json_or_table
@lang_option
def command(job: str | None, stacks: bool, form: str) -> int:
    """Show what all ranks of a running job are doing now. Run it on any node of the job.

    JOB is its name, its launcher's pid or its log. Without it: all jobs of this user on this machine.

    kubectl exec NAME-0 -- platform-launch inspect
    """
    language = "en" if form == "json" else languages.current()
    launches = _of_job(job, running_launches(temporary_folder(), language))
    answers = list(_one_per_job(launches).values())
    if form == "json":
        documents = [_document(answer) for answer in answers]
        print_json(documents if len(documents) > 1 else documents[0])
        return 0
    for number, answer in enumerate(answers):
        for line in ("", *_lines(answer, stacks=stacks))[not number :]:
            click.echo(line)
    return 0


def _of_job(job: str | None, launches: Launches) -> Launches:
    """Return the launches of one job, or all. Raises InputError if there are none."""
    found = {path: answer for path, answer in launches.items() if job is None or _is_named(answer, job)}
    if not found:
        raise InputError(
            _with_list(Phrase("no job {job!r} runs on this machine, but these:", job=job), launches),
            "run this on a node of the job, in its container and as its user",
        )
    return found


def _is_named(answer: Answer, text: str) -> bool:
    """Tell whether a text is the job, the launcher's pid, or the path of the log."""
    if text in (_job(answer), str(answer["pid"])):
        return True
    with suppress(OSError, ValueError):
        return Path(text).samefile(str(answer.get("log", "")))
    return False


def _with_list(title: Phrase, launches: Launches) -> Phrase:
    """Add a line for each launch to a message, this user's first."""
    answers = sorted(launches.values(), key=lambda answer: not _is_own(answer))
    return Listed([title, *map(_line, answers)], Listed.LINES)


def _line(answer: Answer) -> Phrase:
    job, pid, log = escaped(_job(answer) or "?"), answer["pid"], escaped(str(answer.get("log", "?")))
    if _is_own(answer):
        return Phrase("job {job}, pid {pid}, log {log}", job=job, pid=pid, log=log)
    user = str(answer["uid"])
    with suppress(KeyError):
        user = pwd.getpwuid(int(user)).pw_name
    return Phrase("job {job}, pid {pid}, user {user}, log {log}", job=job, pid=pid, user=user, log=log)


def _is_own(answer: Answer) -> bool:
    return answer["uid"] == os.geteuid()


def _job(answer: Answer) -> str | None:
    return job_of(Path(str(answer.get("log", ""))).name)


def _document(answer: Answer) -> dict[str, object]:
    """Return the JSON form of an answer, without the templates of its lines."""

    def public(part: Mapping[str, object]) -> dict[str, object]:
        return {name: one for name, one in part.items() if not name.endswith(("sentences", "_phrases"))}

    finding = answer.get("finding")
    document = {"job": _job(answer), **public(answer)}
    return document | ({"finding": public(finding)} if isinstance(finding, dict) else {})


def chosen_launch(job: str | None) -> tuple[Path, Answer]:
    """Return the socket and the answer of the requested job, or of this user's only one.

    Another user's job, which only root sees, must be requested. Raises InputError unless it is exactly one.
    """
    launches = _of_job(job, running_launches(temporary_folder()))
    own = {path: answer for path, answer in launches.items() if _is_own(answer)}
    chosen = _one_per_job(own or launches)
    if job is None and not own:
        title = Phrase("no job of this user runs on this machine, but these:")
    elif len(chosen) > 1:
        title = Phrase("several jobs run on this machine:")
    else:
        return next(iter(chosen.items()))
    raise InputError(
        _with_list(title, _one_per_job(launches)), "add the pid of one of them, its name or its log"
    )


def running_launches(temporary: Path, language: str = "en") -> Launches:
    """Return the answers of the launches on this machine, by socket; their stacks in a language.

    Raises InputError if there is none, LaunchError if none answers.
    """
    answers: dict[Path, Answer] = {}
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
    return answers


def _one_per_job(launches: Launches) -> Launches:
    """Return one launch of each job: two of its nodes on one machine give the same answer."""
    jobs = {(answer["uid"], _processes(answer)): path for path, answer in reversed(launches.items())}
    return {path: launches[path] for path in reversed(jobs.values())}


def _processes(answer: Answer) -> str:
    """Return a key that identifies a job."""
    nodes = answer.get("nodes")
    found = nodes if isinstance(nodes, list) else []
    pids = [[node["host"], [rank["state"]["pid"] for rank in node["ranks"]]] for node in found]
    return json.dumps(pids) if any(pids) else str(id(answer))


def _lines(answer: Answer, *, stacks: bool) -> list[str]:
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


def _translated(answer: Answer, part: str) -> list[str]:
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
