"""What ``why`` says about a hang: the records that the hang monitor wrote beside the logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from platform_launch.console.languages import current, translate
from platform_launch.errors import InputError
from platform_launch.events import event
from platform_launch.observe.words import message
from platform_launch.sentences import Sentence
from platform_launch.text import Phrase, joined
from platform_launch.why.answer.verdict import label
from platform_launch.why.sources import events_of, logs_in

_NAME = re.compile(r"(?P<log>.+)\.hang(?P<number>\d{1,6})\.json")
_LARGEST = 256 * 1024 * 1024
_MOST_LINES = 40


@dataclass(frozen=True)
class HangRecord:
    """The last finding of a launch: how long there had been no progress, and who was waited for, in words and
    as ranks.

    ``sentences`` holds, for each line, what it was made of; nothing for a line of a stack.
    """

    path: Path
    time: str
    still_s: float
    kind: str
    suspect_ranks: tuple[int, ...]
    description: tuple[str, ...]
    sentences: tuple[tuple[object, ...], ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the part of the JSON output under ``hang``."""
        return {
            "record": str(self.path),
            "time": self.time,
            "still_s": self.still_s,
            "kind": self.kind,
            "suspect_ranks": list(self.suspect_ranks),
            "lines": list(self.description),
        }

    def lines(self) -> list[str]:
        """Return the answer for a terminal, as the launch printed it, in this process's language."""
        name = "slow-but-working" if self.kind == "busy" else "no-progress"
        paired = zip_longest(self.description or ("",), self.sentences[: len(self.description)])
        first, *rest = (_message(text or "", sentences) for text, sentences in paired)
        sentences = [translate(event(name, still_s=self.still_s, headline=first))]
        sentences += [translate(event(f"{name}-detail", text=text)) for text in rest]
        hang, record = (label(word, current()) for word in ("hang", "record"))
        return [
            f"{hang} {sentences[0]}",
            *(f"{'':<11} {line}" for line in sentences[1:]),
            f"{record} {self.path} ({self.time})",
        ]


def part(paths: Iterable[str]) -> tuple[HangRecord | None, tuple[str, ...]]:
    """Read the records among the paths; return the last one and the other paths.

    Raises InputError for a record that cannot be read.
    """
    named, others = list[str](), list[str]()
    for path in paths:
        (named if _NAME.fullmatch(Path(path).name) else others).append(path)
    records = [read_record(Path(path)) for path in named]
    return max(records, key=lambda record: record.time, default=None), tuple(others)


def beside_logs(paths: Iterable[Path], job: str | None) -> HangRecord | None:
    """Return the last record of the launches whose logs are read; None if the job continued after it."""
    found = []
    for log in logs_in(list(paths), job):
        numbered = [(int(name["number"]), path) for path, name in _records_of(log)]
        if not numbered or _continued(log):
            continue
        try:
            found.append(read_record(max(numbered)[1]))
        except InputError:  # a truncated record must not prevent reading the logs
            continue
    return max(found, key=lambda record: record.time, default=None)


def read_record(path: Path) -> HangRecord:
    """Read one. Raises InputError."""
    try:
        with path.open("rb") as file:
            hang = json.loads(file.read(_LARGEST))["hang"]
        return HangRecord(
            path,
            str(hang["time"]),
            float(hang["still_s"]),
            str(hang["kind"]),
            tuple(sorted(int(rank) for rank in hang["suspect_ranks"])),
            tuple(str(line) for line in hang["lines"][:_MOST_LINES]),
            tuple(tuple(documents) for documents in hang.get("line_sentences", ())),
        )
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror)
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            Phrase(
                "{path} is not a hang record ({kind}: {problem}): expected the JSON that the hang "
                "monitor writes next to a log",
                path=path,
                kind=type(error).__name__,
                problem=error,
            ),
            "pass the log or its folder",
        ) from error


def _message(text: str, documents: Iterable[object] | None) -> str:
    """Return a line as a message, or in English if another version wrote it."""
    with suppress(KeyError, ValueError):
        seen = joined((message(Sentence.read(one)) for one in documents or ()), "; ")
        return Phrase("  {line}", line=seen) if seen and text.startswith("  ") else seen or text
    return text


def _records_of(log: Path) -> list[tuple[Path, re.Match[str]]]:
    # The record of a compressed log keeps its name.
    stems = {log.with_suffix("").name, log.with_suffix("").with_suffix("").name}
    try:
        names = [(path, _NAME.fullmatch(path.name)) for path in log.parent.iterdir()]
    except OSError:
        return []
    return [(path, name) for path, name in names if name is not None and name["log"] in stems]


def _continued(log: Path) -> bool:
    changes = [event.id for event in events_of(log) or () if event.id in ("no-progress", "progress-again")]
    return changes[-1:] == ["progress-again"]
