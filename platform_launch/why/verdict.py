"""The answer: what failed first, where that is written, what it means and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from platform_launch.why.line import Where, shown


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
    """The exception and the innermost place in the user's own code, if there is one."""

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None


@dataclass(frozen=True)
class Consequence:
    """What then happened to others, folded: ``15 other ranks then lost their connection``."""

    id: str
    text: str
    count: int


@dataclass(frozen=True)
class Verdict:
    """What the logs tell.

    ``kind`` says how sure it is: ``cause`` (a line says why a process ended), ``suspect`` (would explain
    it), ``consequence`` (the first sign; what caused it is not in these logs), ``unknown``, ``finished``
    (the launcher reported success) or ``nothing`` (no line looks like an error).
    ``cause`` is the signature's id, None where none is known.
    """

    kind: str
    cause: str | None = None
    title: str = ""
    meaning: str = ""
    fix: str = ""
    source: str = ""
    where: Where = field(default_factory=Where)
    exception: Code | None = None
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    first_error: Evidence | None = None
    notes: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form, also kept in the launch record."""
        document = asdict(self)
        place = document.pop("where")
        return {**document, "node": place["node"], "rank": place["rank"], "where": place}

    def lines(self) -> list[str]:
        """Return the answer for a terminal, one fact a line."""
        return [f"{label + ':':<11} {text}" for label, text in self._facts() if text]

    def _facts(self) -> list[tuple[str, str]]:
        code, place = self.exception, ""
        if code is not None and code.file is not None:
            inside = f" in {code.function}" if code.function else ""
            place = shown(f"{code.file}:{code.line}{inside}")
        return [
            (self._label, self._headline()),
            *(("seen", str(evidence)) for evidence in self.evidence),
            ("raised at", place),
            ("means", self.meaning),
            ("fix", self.fix),
            *(("then", consequence.text) for consequence in self.consequences),
            *(("note", note) for note in self.notes),
        ]

    @property
    def _label(self) -> str:
        return {"suspect": "likely", "consequence": "first sign"}.get(self.kind, "cause")

    def _headline(self) -> str:
        if self.kind == "finished":
            return "none: the training finished"
        if self.kind == "nothing":
            return "unknown: no line of these logs looks like an error"
        if self.kind == "unknown":
            first = f"; first error was {self.first_error}" if self.first_error else ""
            return f"no known cause{first}"
        place = str(self.where)
        return f"{self.title} [{self.cause}]" + (f" on {place}" if place else "")
