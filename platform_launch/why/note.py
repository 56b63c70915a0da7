"""A note on an answer, as an id and values; it becomes a message when it is shown.

``ENGLISH`` holds the templates. Programs use the id, never the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from platform_launch.console.languages import translate
from platform_launch.text import Phrase, joined

_MOST_NAMED = 8
_DEEPEST = 4

ENGLISH = {
    # About the chosen event.
    "same-on": "the same on {others}",
    "first-of-several": "several processes show it; the first to exit, according to the launcher: {place}",
    "lost-by": "{place} lost the connection",
    "raised-handling": "raised while handling {exception}",
    "ended-as": "it ended as {exception}",
    "oom-kills": "out-of-memory kills counted by the cgroup during the run: {count}",
    "quoted": "reported by that node: {text}",
    # How processes ended.
    "process-ended": "{place} ended with exit code {code}",
    "some-process-ended": "a process ended with exit code {code}",
    "tasks-ended": "processes that ended with an error: {tasks}",
    "tasks-ended-cut": "processes that ended with an error: {tasks} and on {more} more",
    "exited": "{tasks} on {host} (exit code {code})",
    "killed": "{tasks} on {host} (signal {signal})",
    # Other events.
    "showed-first": "it first showed as: {event}",
    "perhaps": "perhaps: {event}",
    "also": "also in these logs: {event}",
    "another-program": "another program in the same log failed, apparently independently: {event}",
    "order-unknown": "the logs do not show which came first; also {event}",
    "error-above": "there is an error nearby ({log}:{line}): {text}",
    "last-words": "the last line before it ended ({log}:{line}): {text}",
    "event": "{title} ({log}:{line})",
    "event-on": "{title} on {place} ({log}:{line})",
    # What the job survived, and what was not read.
    "earlier-attempt": "an earlier attempt in these logs ended with: {event}",
    "errors-survived": "training continued after earlier errors (errors: {count})",
    "output-follows": "{count} lines of output follow: the process may have survived this",
    "lines-left-out": "{log} is full of {heads}: only the first and last of these lines were read",
    "tracebacks-left-out": "{log} is full of tracebacks: not all of them were read",
    "unpacked-in-part": "{log} decompresses to more than 100 times its size: only the first {mib} MiB were "
    "read; decompress it and pass the file",
    "empty": "{log} is empty",
    "ends-with": "{log} ends with line {line}: {text}",
    "no-end": "{log}: this launch has no end: it is still running, its launcher was killed (SIGKILL), or its "
    "node was lost",
    # Who is behind.
    "started-fewer": "{ranks} started {count} collectives, the others {others}",
    "timed-out-behind": "{ranks} timed out at number {number} ({operation}), the others at {others}",
    "ran-another": "{ranks} ran {operation}; {other_ranks} ran {others}",
    "no-timeout": "{ranks} reported no timeout: look there first",
    "none-completed": "every rank that reports timed out in its first collective",
    "none-completed-of": "of {size} ranks, only these report a timeout, in the first collective: {ranks}",
    "did-not-come": "of {size} ranks, these did not come, according to the logs: {ranks}",
    "rank": "rank {numbers}",
    "ranks": "ranks {numbers}",
    "ranks-cut": "ranks {numbers} and {more} more",
}


@dataclass(frozen=True)
class Note:
    """An id of ``ENGLISH`` and the values for its template: texts, numbers and further notes.

    Two ids have no template: ``cause`` (``cause``: id of a signature, ``title``) and ``place`` (the parts of
    a location, by name).
    """

    id: str
    values: dict[str, NoteValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._depth() > _DEEPEST:  # agents send notes to a server
            raise ValueError(f"a note of notes more than {_DEEPEST} deep")

    def _depth(self) -> int:
        held = (
            one for value in self.values.values() for one in (value if isinstance(value, list) else [value])
        )
        return 1 + max((one._depth() for one in held if isinstance(one, Note)), default=0)

    def message(self) -> Phrase:
        """Return it as a message. Raises KeyError if the id or a value is of another version."""
        if self.id == "cause":
            return Phrase(str(self.values["title"]))
        if self.id == "place":
            named = ((Phrase(name), value) for name, value in self.values.items())
            return joined(Phrase("{name} {value}", name=name, value=value) for name, value in named)
        values = {name: _message(value) for name, value in self.values.items()}
        return Phrase.checked(ENGLISH[self.id], values)

    def render(self, language: str) -> str:
        """Return it in a language. Raises KeyError as :meth:`message` does."""
        return translate(self.message(), language)


NoteValue = str | int | Note | list[Note]


def _message(value: NoteValue) -> str | int:
    if isinstance(value, list):
        return joined(one.message() for one in value)
    return value.message() if isinstance(value, Note) else value


def note(note_id: str, /, **values: NoteValue) -> Note:
    """Return a note."""
    return Note(note_id, values)


def ranks_named(ranks: list[int]) -> Note:
    """Return the name of some ranks, or of the first of many."""
    numbers, more = counted_off(ranks)
    if more:
        return note("ranks-cut", numbers=numbers, more=more)
    return note("ranks" if len(ranks) > 1 else "rank", numbers=numbers)


def counted_off(numbers: list[int]) -> tuple[str, int]:
    """Return sorted numbers as ranges (``0–3, 6``), and how many of them are left out."""
    rows = list[list[int]]()
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    parts = [one for row in rows for one in ([row] if len(row) > 2 else [[number] for number in row])]
    shown = (f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts[:_MOST_NAMED])
    return joined(shown), sum(map(len, parts[_MOST_NAMED:]))
