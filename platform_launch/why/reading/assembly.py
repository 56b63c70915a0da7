"""Keeps the open tracebacks of all writers in one log, and determines what each one means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from platform_launch.why.lines.clock import Clock
from platform_launch.why.lines.line import NOWHERE, Line, Location
from platform_launch.why.messages.exceptions import TAKES_AWAY, Raised, operation
from platform_launch.why.messages.signatures import Catalogue, Match, SignatureRole
from platform_launch.why.messages.tracebacks import Traceback, is_frame, opens, quotes_task

# After a writer that was killed in the middle, not every following line must be read.
_ATTENTION_LINES = 2000
_MOST_OPEN = 4096
# What precedes a traceback that ended nothing: Python reports faults in destructors and in logging in this
# way.
HARMLESS = re.compile(r"Exception ignored in|--- Logging error ---")
# If a file to remove or rename is missing, another of several processes has done it.
_TAKEN = re.compile(r"No such file or directory: '(?P<path>[^']+)'")

# torch.multiprocessing.spawn numbers the processes of a node.
_SPAWNED = re.compile(r"-- Process (\d{1,5}) terminated with the following error")


class Assembly:
    """Gives each line to the traceback it belongs to. Complete ones come from :meth:`finished`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, list[Traceback]] = {}
        self._latest: Traceback | None = None
        self._finished: list[Traceback] = []
        self._attention_ends = 0
        self._harmless: dict[str, int] = {}
        self._announced: dict[str, tuple[int, Location, str]] = {}

    @property
    def is_open(self) -> bool:
        """Return whether any writer is in the middle of a traceback."""
        return bool(self._open)

    def read(self, line: Line) -> bool:
        """Read a line; return False if it is not part of a traceback."""
        if self._open and line.number > self._attention_ends:
            self.close()
        if HARMLESS.match(line.text):
            self._harmless[line.writer] = line.number
        if spawned := _SPAWNED.match(line.text):
            self.announce(line, Location(local_rank=int(spawned[1])))
        if task := quotes_task(line.text):
            self.announce(line, Location(host=task["host"]), task["raised"] or "")
        readings = self._open.get(line.writer, [])
        for reading in sorted(readings, key=lambda one: -len(one.prefix)):
            if line.text.startswith(reading.prefix) and self._read(line, reading):
                return True
        opening = opens(line.text)
        if len(self._open) > _MOST_OPEN or (opening is None and not is_frame(line.text)):
            return False
        if opening is None and self._hand_over(line):
            return True
        reading = Traceback(line, opening, self._clock.moment(line))
        if line.number - self._harmless.get(line.writer, -9) <= 2:
            reading.harmless = True
        number, place, quoted = self._announced.get(line.writer, (-9, NOWHERE, ""))
        if line.number - number <= 2:
            reading.where = line.where.filled(place)
            reading.quoted = quoted
        if opening is None:
            reading.read(line)
        self._latest = reading
        self._open.setdefault(line.writer, []).append(reading)
        self._attention_ends = line.number + _ATTENTION_LINES
        return True

    def announce(self, line: Line, where: Location, quoted: str = "") -> None:
        """Record whose traceback may follow in the lines right below, and its exception."""
        self._announced[line.writer] = line.number, where, quoted

    def place_announced(self, line: Line) -> Location:
        """Return whose traceback this line should belong to, according to the line right above."""
        number, place, _ = self._announced.get(line.writer, (-9, NOWHERE, ""))
        return place if line.number - number == 1 else NOWHERE

    def ends_a_twin(self, line: Line) -> bool:
        """Return whether a line may end a traceback that began among the lines of another one."""
        for reading in self._open.get(line.writer, []):
            if reading.twins and reading.links:
                reading.twins -= 1
                return True
        return False

    def _hand_over(self, line: Line) -> bool:
        """Give a frame to a traceback that has a prefix only on its first line, as many loggers write it."""
        latest = self._latest
        if latest is None or latest.frames or latest.done or line.writer:
            return False
        for writer, readings in self._open.items():
            if latest in readings:
                readings.remove(latest)
                if not readings:
                    del self._open[writer]
                break
        self._open.setdefault(line.writer, []).append(latest)
        return self._read(line, latest)

    def close(self) -> None:
        """Finish every traceback as it is: the log ended, or no more is expected."""
        self._finished += [reading for readings in self._open.values() for reading in readings]
        self._open.clear()

    def finished(self) -> Iterator[Traceback]:
        """Yield what was completed since the last call, in the order of completion."""
        while self._finished:
            yield self._finished.pop(0)

    def _read(self, line: Line, reading: Traceback) -> bool:
        consumed = reading.read(line)
        if consumed:
            reading.end = line.number
            self._attention_ends = max(self._attention_ends, line.number + _ATTENTION_LINES)
        if reading.done:
            readings = self._open[line.writer]
            readings.remove(reading)
            if not readings:
                del self._open[line.writer]
            self._finished.append(reading)
        return consumed


def meaning_of(chain: Traceback, catalogue: Catalogue) -> tuple[Raised, Match, SignatureRole]:
    """Return the most informative link of a chain (a known cause, else the first) and its meaning."""
    raised, match = _telling_link(chain, catalogue)
    if raised.frame is None:
        # It passed through the user's code before it was raised again.
        texts = [link.text for link in chain.links]
        again = chain.links[texts.index(raised.text) :] if raised.text in texts else []
        raised = replace(raised, frame=next((link.frame for link in again if link.frame), None))
    signature = match.signature
    if chain.was_caught:
        unknown = not signature.patterns
        role = SignatureRole.SUSPECT if signature.role is SignatureRole.CAUSE else signature.role
        return raised, replace(match, signature=catalogue["caught_exception"]) if unknown else match, role
    if signature.role is SignatureRole.SUSPECT:
        # It was not caught, so it ended the process.
        return raised, match, SignatureRole.CAUSE
    return raised, match, signature.role


def _telling_link(chain: Traceback, catalogue: Catalogue) -> tuple[Raised, Match]:
    root = _root(chain)
    if placed := catalogue.raised_at(root.places, root.text):
        return root, Match(placed, 0, NOWHERE)
    taken = _TAKEN.search(root.message)
    one_of_many = chain.where.rank is not None
    if taken and one_of_many and operation(root) in TAKES_AWAY:
        return root, Match(catalogue["file_race"], 0, NOWHERE, (("path", taken["path"]),))
    # An exception of another package that code raises after a failure only shows the code's interpretation.
    own = [link for link in chain.links if link in (chain.links[0], root) or not link.is_borrowed]
    known = [(link, found) for one in own for link, found in _known(one, catalogue)]
    causes = [one for one in known if one[1].signature.role in (SignatureRole.CAUSE, SignatureRole.SUSPECT)]
    if causes:
        best = max(causes, key=lambda one: (one[1].signature.specificity, one[0].text == root.text))
        same = (one for one in causes if one[1].signature is best[1].signature and one[1].details)
        return best if best[1].details else next(same, best)
    if known and (chain.root == 0 or known[-1][0] is root):
        return known[-1]
    return root, Match(catalogue["python_exception"], 0, NOWHERE)


def _root(chain: Traceback) -> Raised:
    """Return the root cause of a chain.

    For a failed look-up it is the exception that its handler raised on purpose, for a cancelled wait the one
    that says what the process waited for.
    """
    index = min(chain.root, len(chain.links) - 1)
    while index + 1 < len(chain.links) and (
        chain.links[index].only_stopped_waiting or chain.links[index].ends_well
    ):
        index += 1
    root = chain.links[index]
    for link in chain.links[index + 1 :]:
        on_purpose = link.handling and link.innermost and link.innermost.source.startswith("raise ")
        if not on_purpose or not root.is_lookup:
            break
        root = link
    return root


def _known(raised: Raised, catalogue: Catalogue) -> Iterator[tuple[Raised, Match]]:
    """Yield the matches in the lines of an exception's message; a line below the first is then the
    evidence.
    """
    cut = raised.text.endswith("…")  # the part of a message that may be shown; the line has all of it
    text = raised.line.text if cut else raised.text
    if found := catalogue.match(text):
        yield raised, found
    for line in raised.more:
        found = catalogue.match(line.text)
        if found is not None and found.signature.role is SignatureRole.CAUSE:
            yield replace(raised, line=line), found
