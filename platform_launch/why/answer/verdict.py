"""The answer: what failed first, where that is written, what it means and what to do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from platform_launch.console.languages import current, translate
from platform_launch.text import Phrase, counted, joined, padded
from platform_launch.why.answer.retry import retry_of
from platform_launch.why.lines.line import Location, shown
from platform_launch.why.messages.exception_rules import filled
from platform_launch.why.messages.own_advice import led_by
from platform_launch.why.messages.signatures import Catalogue
from platform_launch.why.note import Note

# What differs between two runs of the same failure: paths, addresses, hexadecimal numbers, numbers, units.
_VARYING = re.compile(
    r"(?:[A-Za-z]+://|~?/|\.{1,2}/)[^\s'\"`,;:)\]}>]*"
    r"|\b0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{4,})*\b"
    r"|[\w-]*\d[\w.:-]*(?:\s?[KMGT]?i?B\b)?"
)
_LENGTH = 16
_ESSENCE_CHARACTERS = 200
_READ_LATER = ("means", "then", "note", "id")
# Causes whose title is the program's own message.
_SAID_BY_THE_PROGRAM = frozenset({"caught_exception", "program_error", "python_exception"})


@dataclass(frozen=True)
class Evidence:
    """A line of a log. ``text`` holds no control characters."""

    log: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{shown(self.log)}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Code:
    """The exception and the innermost place in the user's own code, if there is one.

    Of an exception that no signature knows also the installed ``package`` that raised it, where in it
    (``innermost``) and the line of ``code``.
    """

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    package: str | None = None
    innermost: str | None = None
    code: str = ""


@dataclass(frozen=True)
class Consequence:
    """What happened to others as a result: ``15 other ranks: a connection to another process was lost``.

    ``of`` is what was counted: ranks, or lines if none is named.
    """

    id: str
    title: str
    count: int
    of: str = "ranks"

    def message(self) -> Phrase:
        """Return it as a message."""
        lines = self.of == "lines"
        who = counted(self.count, "line") if lines else counted(self.count, "other rank")
        return Phrase("{name}: {value}", name=who, value=Phrase(self.title))


@dataclass(frozen=True)
class Ranked:
    """One of the highest claims: its cause ("" for a line without a signature) and its line."""

    cause: str
    log: str
    line: int
    text: str


@dataclass(frozen=True)
class Verdict:
    """The result.

    ``kind`` says how sure it is: ``cause`` (a line says why a process ended), ``suspect`` (would explain it),
    ``consequence`` (the first sign; what caused it is not in these logs), ``unknown``, ``finished`` (the
    launcher reported success) or ``nothing`` (no line looks like an error). ``cause`` is the signature's id,
    None where none is known. ``details`` is what else the lines say (peer, path, device …). ``fix`` begins
    with ``own_advice``, the message's own advice. ``advice`` is the rule that ``meaning`` and ``fix`` of an
    unknown exception come from (``exception_rules.yaml``); ``templates`` holds both before words of the log
    were filled in. ``retry`` is whether it is worth starting the same job again: "no", "same_node",
    "another_node" or None where that is not known; ``retry_reason`` says why. ``fingerprint`` is equal for
    equal failures. ``ranked`` are the highest claims and ``hosts`` the hosts that the logs name; both are for
    the question to a model and not in the JSON form. ``noted`` holds each of ``notes`` as an id and values.
    """

    kind: str
    cause: str | None = None
    title: str = ""
    meaning: str = ""
    fix: str = ""
    own_advice: str = ""
    advice: str | None = None
    templates: tuple[str, ...] = ()
    source: str = ""
    where: Location = field(default_factory=Location)
    exception: Code | None = None
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    first_error: Evidence | None = None
    notes: tuple[str, ...] = ()
    noted: tuple[Note, ...] = ()
    logs: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    retry: str | None = None
    retry_reason: str = ""
    fingerprint: str | None = None
    ranked: tuple[Ranked, ...] = ()
    hosts: tuple[str, ...] = ()

    def with_notes(self, notes: Sequence[Note]) -> Verdict:
        """Return this with more notes."""
        texts = (one.render("en") for one in notes)
        return replace(self, notes=(*self.notes, *texts), noted=(*self.noted, *notes))

    def without_note(self, note_id: str) -> Verdict:
        """Return this without the notes of an id."""
        kept = [one for one in self.noted if one.id != note_id]
        return replace(self, notes=(), noted=()).with_notes(kept)

    def concluded(self, catalogue: Catalogue) -> Verdict:
        """Return this with what follows from the rest: whether to retry, and the fingerprint."""
        if self.kind in ("finished", "nothing"):
            return self
        signature = catalogue[self.cause] if self.cause else None
        retry, reason = self.retry, self.retry_reason
        if retry is None and (known := retry_of(self.cause or "")) is not None:
            retry, reason = known.answer, reason or known.because
        if not reason:
            unknown = self.kind != "cause" and self.first_error is None
            reason = "the cause is not in these logs" if unknown else "it depends on what the line says"
        retry = "" if retry == "unknown" else retry
        parts = ["", self.cause or "", "", ""]
        if signature is None or signature.distinct:
            first, code = self.first_error, self.exception
            message = code.message if code else first.text if first else ""
            message = message or "".join(one.text for one in self.evidence)
            parts[2:] = code.type if code else "", essence(message)
        name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_LENGTH]
        return replace(self, retry=retry or None, retry_reason=reason, fingerprint=name)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form, also kept in the launch record."""
        document = asdict(self)
        place = document.pop("where")
        del document["ranked"], document["hosts"]
        return {**document, "node": place["node"], "rank": place["rank"], "where": place}

    def lines(self, language: str = "", *, brief: bool = False) -> list[str]:
        """Return the answer, one fact per line, in this process's language or another.

        ``brief`` leaves out what can be read later: the meaning, the consequences and the id.
        """
        language = language or current()
        left_out = _READ_LATER if brief else ()
        facts = [(name, text) for name, text in self._facts(language) if text and name not in left_out]
        return [f"{label(name, language)} {text}" for name, text in facts]

    @staticmethod
    def from_fields(fields: Mapping[str, object]) -> Verdict:
        """Return the verdict in a launch's event, as far as title and advice need it."""
        text = {name: str(value or "") for name, value in fields.items()}
        details, templates = fields.get("details"), fields.get("templates")
        return Verdict(
            text.get("kind", ""),
            text.get("cause") or None,
            text.get("title", ""),
            text.get("meaning", ""),
            text.get("fix", ""),
            text.get("own_advice", ""),
            text.get("advice") or None,
            tuple(map(str, templates)) if isinstance(templates, list) and len(templates) == 2 else (),
            details={str(name): str(value) for name, value in details.items()}
            if isinstance(details, dict)
            else {},
        )

    def short_title(self, language: str = "") -> str:
        """Return what happened, without its id and place."""
        return translate(self._title(), language)

    def _title(self) -> str:
        """Return the title as a message; for some causes it is the program's own message."""
        if self.cause in _SAID_BY_THE_PROGRAM:
            return Phrase("{title}", title=self.title)
        return Phrase(self.title)

    def to_do(self, language: str = "") -> str:
        """Return what to do."""
        return self._advice(language or current())[1]

    def _advice(self, language: str) -> tuple[str, str]:
        """Return what it means and what to do."""
        if language == "en":
            return self.meaning, self.fix
        if not self.templates:
            return translate(self.meaning, language), translate(self.fix, language)
        meaning, fix = (filled(template, self.details, language) for template in self.templates)
        return meaning, led_by(self.own_advice, fix)

    def _facts(self, language: str) -> list[tuple[str, str]]:
        code, place = self.exception, ""
        if code is not None and code.file is not None:
            inside = f" in {code.function}" if code.function else ""
            place = shown(f"{code.file}:{code.line}{inside}")
        inner = shown(code.innermost) if code is not None and code.innermost else ""
        meaning, fix = self._advice(language)
        details = joined(
            Phrase("{name} {value}", name=Phrase(name), value=text) for name, text in self.details.items()
        )
        return [
            (self.kind_word, self.headline(language)),
            # A headline that ends with a line of the log cannot also end with its place.
            (
                "where",
                self.where.note.render(language) if self.kind == "unknown" and self.first_error else "",
            ),
            *(("seen", str(evidence)) for evidence in self.evidence),
            ("message", "" if code is None or self.title.startswith(code.type) else _rest(code.message)),
            ("raised at", place),
            ("raised by", inner),
            ("code", code.code if code is not None else ""),
            ("details", translate(details, language)),
            ("means", meaning),
            ("fix", fix),
            ("retry", self._retry_line(language)),
            *(("then", translate(one.message(), language)) for one in self.consequences),
            *(("note", text) for text in self._notes(language)),
            ("id", self.fingerprint or ""),
        ]

    def _notes(self, language: str) -> Sequence[str]:
        if language == "en" or len(self.noted) != len(self.notes):
            return self.notes
        with suppress(KeyError):  # a note of another version
            return [one.render(language) for one in self.noted]
        return self.notes

    def _retry_line(self, language: str) -> str:
        answers = {"no": "no", "same_node": "yes, on the same node", "another_node": "yes, on another node"}
        if self.kind in ("finished", "nothing"):
            return ""
        answer = Phrase(answers.get(self.retry or "", "not known"))
        return translate(
            Phrase("{answer}: {reason}", answer=answer, reason=Phrase.of(self.retry_reason)), language
        )

    @property
    def kind_word(self) -> str:
        """What the answer is called, in English: the cause, or how close it comes to one."""
        return {"suspect": "likely", "consequence": "first sign"}.get(self.kind, "cause")

    def headline(self, language: str = "") -> str:
        """Return the answer in one sentence."""
        return translate(self._headline(), language)

    def _headline(self) -> Phrase:
        if self.kind == "finished":
            return Phrase("none: the training finished")
        if self.kind == "nothing":
            return Phrase("unknown: no line of these logs looks like an error")
        if self.kind == "unknown":
            if self.first_error:
                return Phrase("no known cause; this line may show it: {line}", line=self.first_error)
            for one in self.noted:
                if one.id in ("process-ended", "some-process-ended"):
                    unknown = Phrase("unknown: nothing printed shows why")
                    if any(other.id == "last-words" for other in self.noted):
                        unknown = Phrase("unknown: no error was printed; the last line may show why")
                    return joined((unknown, one.message()), "; ")
            return _at(Phrase("unknown: these logs only show that processes exited"), self.where)
        return _at(Phrase("{title} [{cause}]", title=self._title(), cause=self.cause or "None"), self.where)


def _rest(message: str) -> str:
    """Return a message of several lines in one line; "" for a single line, which the evidence shows."""
    return shown(" ".join(message.split())) if "\n" in message else ""


def label(name: str, language: str) -> str:
    """Return what stands before a fact, in a column of twelve cells; a Chinese character takes two."""
    word = translate(name, language)
    return padded(f"{word}:" if word == name else f"{word}：", 11)


def _at(headline: Phrase, where: Location) -> Phrase:
    """Return a headline with the place."""
    place = where.note.message()
    return Phrase("{headline} on {place}", headline=headline, place=place) if place else headline


def essence(text: str) -> str:
    """Return the first sentence of a message without what differs from run to run."""
    sentence = re.split(r"(?<=[a-z)])\. |\n", text, maxsplit=1)[0]
    return " ".join(_VARYING.sub("*", sentence).split())[:_ESSENCE_CHARACTERS]
