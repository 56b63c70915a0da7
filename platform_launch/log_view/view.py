"""A line of a log as text: its node, coloured stages and levels, the root cause marked."""

from __future__ import annotations

from platform_launch.console.languages import translate
from platform_launch.events import Event
from platform_launch.log_view.launch import CauseLine
from platform_launch.log_view.merge import Shown
from platform_launch.text import Phrase, one_line
from platform_launch.why.answer.verdict import Verdict

_LEVELS = {"SUCCESS": "32", "WARN": "33", "ERROR": "31"}
_STAGE = "1;36"
_CAUSE = "1;31"
_NODES = ("36", "35", "34", "32", "33", "95", "94", "96")


class LogView:
    """Turns entries into lines of text. ``colours``: for a terminal. ``labelled``: several logs are shown."""

    def __init__(self, *, colours: bool, labelled: bool, cause: CauseLine | None) -> None:
        self._colours = colours
        self._labelled = labelled
        self._cause = cause
        self._marked = False

    def lines(self, shown: Shown) -> list[str]:
        """Return an entry as texts: a line or a run, and a marker line below the root cause."""
        log, entry = shown
        label, text = log.label if self._labelled else "", entry.text
        if "\n" in text:
            return self._run(shown, label)
        if label and text.startswith(label):
            text = text[len(label) :]
        is_cause = self._is_cause(shown)
        if self._colours:
            colour = _CAUSE if is_cause else _STAGE if entry.is_stage else _LEVELS.get(entry.level)
            text = _painted(text, colour)
            label = _painted(label, _NODES[(log.node or 0) % len(_NODES)])
        lines = [f"{label}{text}"]
        if is_cause and self._cause is not None and not self._marked:
            self._marked = True
            line = f"^^^ {_verdict_line(self._cause.verdict)}"
            lines.append(label + (_painted(line, _CAUSE) if self._colours else line))
        return lines

    def closing(self, cause: CauseLine | None) -> str:
        """Return the lines that name the root cause at the end, if its line was not shown or marked."""
        if cause is None or self._marked:
            return ""
        line = _verdict_line(cause.verdict, f"{cause.log}:{cause.number}")
        return _painted(line, _CAUSE) if self._colours else line

    def _run(self, shown: Shown, label: str) -> list[str]:
        log, entry = shown
        place, behind = self._cause, entry.number + entry.text.count("\n")
        if place is not None and log.path.name == place.log and entry.number <= place.number <= behind:
            return [line for one in entry.lines() for line in self.lines(Shown(log, one))]
        if not label:
            return [entry.text]
        text = f"\n{entry.text}".replace(f"\n{label}", "\n")
        if self._colours:
            label = _painted(label, _NODES[(log.node or 0) % len(_NODES)])
        return [text.replace("\n", f"\n{label}")[1:]]

    def _is_cause(self, shown: Shown) -> bool:
        place = self._cause
        return place is not None and shown.entry.number == place.number and shown.log.path.name == place.log


def _verdict_line(event: Event, place: str = "") -> str:
    """Return a verdict as text, with the labels of ``platform-launch why``."""
    verdict = Verdict.from_fields(event.fields)
    kind, title, fix = Phrase(verdict.kind_word), verdict.short_title(), verdict.to_do()
    if verdict.cause:
        title = f"{title} [{verdict.cause}]"
    summary = Phrase("{kind}: {title}", kind=kind, title=title)
    if place:
        summary = Phrase("{kind} ({place}): {title}", kind=kind, place=place, title=title)
    return one_line(translate(Phrase("{summary}; fix: {fix}", summary=summary, fix=fix) if fix else summary))


def _painted(text: str, colour: str | None) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text
