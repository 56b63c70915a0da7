"""Keeps the tracebacks that are open in one log, of all its writers, and says what each one comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from platform_launch.why.clock import Clock, Span
from platform_launch.why.exceptions import Chain, Raised, Traceback, opens
from platform_launch.why.line import Line, Where
from platform_launch.why.signatures import Catalogue, Role, Signature

# A writer that was killed in the middle must not keep us reading every line of what follows.
_ATTENTION_LINES = 2000
_MOST_OPEN = 4096


@dataclass
class Reading:
    """A traceback that is being read, and when it was printed."""

    traceback: Traceback
    span: Span


class Assembly:
    """Gives each line to the traceback it belongs to. Take what is complete from :meth:`finished`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[Where, list[Reading]] = {}
        self._finished: list[Reading] = []
        self._attention_ends = 0

    @property
    def is_open(self) -> bool:
        """Tell whether any writer is in the middle of a traceback."""
        return bool(self._open)

    def take(self, line: Line) -> bool:
        """Read a line; return False if it says something of its own."""
        if self._open and line.number > self._attention_ends:
            self.close()
        readings = self._open.get(line.process, [])
        for reading in sorted(readings, key=lambda one: -len(one.traceback.prefix)):
            if line.text.startswith(reading.traceback.prefix) and self._give(line, reading):
                return True
        opening = opens(line.text)
        if opening is None or len(self._open) > _MOST_OPEN:
            return False
        reading = Reading(Traceback(line, opening), self._clock.span(line))
        self._open.setdefault(line.process, []).append(reading)
        self._attention_ends = line.number + _ATTENTION_LINES
        return True

    def close(self) -> None:
        """Take every traceback as it is: the log ended, or nothing more is to be expected."""
        self._finished += [reading for readings in self._open.values() for reading in readings]
        self._open.clear()

    def finished(self) -> Iterator[Reading]:
        """Yield what was completed since the last call, in the order of completion."""
        while self._finished:
            yield self._finished.pop(0)

    def _give(self, line: Line, reading: Reading) -> bool:
        links = len(reading.traceback.chain.links)
        consumed = reading.traceback.take(line)
        if links == 0 and reading.traceback.chain.links:
            # Printed up to here: only a later time bounds it.
            self._clock.keep_open(reading.span)
        if consumed:
            self._attention_ends = max(self._attention_ends, line.number + _ATTENTION_LINES)
        if reading.traceback.done:
            readings = self._open[line.process]
            readings.remove(reading)
            if not readings:
                del self._open[line.process]
            self._finished.append(reading)
        return consumed


def meaning_of(chain: Chain, catalogue: Catalogue) -> tuple[Raised, Signature, Role]:
    """Return the link of a chain that tells most (a known cause, else the first) and what it is."""
    raised, signature = _telling_link(chain, catalogue)
    if chain.was_caught:
        unknown = not signature.patterns
        role = Role.SUSPECT if signature.role is Role.CAUSE else signature.role
        return raised, catalogue["caught_exception"] if unknown else signature, role
    if signature.role is Role.SUSPECT:
        # Nobody caught it, so it ended the process.
        return raised, signature, Role.CAUSE
    return raised, signature, signature.role


def _telling_link(chain: Chain, catalogue: Catalogue) -> tuple[Raised, Signature]:
    root = chain.links[min(chain.root, len(chain.links) - 1)]
    known = [(link, found) for link in chain.links if (found := catalogue.match(link.text))]
    causes = [one for one in known if one[1].role in (Role.CAUSE, Role.SUSPECT)]
    if causes:
        return max(causes, key=lambda one: (one[1].specificity, one[0] is root))
    if known and (chain.root == 0 or known[-1][1].role is not Role.SUMMARY):
        return known[-1]
    return root, catalogue["python_exception"]
