"""This launcher's own lines in a log, by event id: from the event file beside it, else from the marks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from platform_launch.events import Event, in_text, marked
from platform_launch.why.lines.line import Line, Location, parse, text_of
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.messages.signatures import Catalogue, Match, SignatureRole
from platform_launch.why.reading.endings import ending_of
from platform_launch.why.reading.homes import Homes
from platform_launch.why.reading.log_events import LogEvents

# What a launcher says about its own end.
_ENDS_OF_LAUNCHES = frozenset(
    """
    launch-refused training-failed training-finished training-followed training-killed training-stopped
    """.split()  # noqa: SIM905
)


class OwnLines:
    """Distinguishes the launcher's lines in a log from all others; only the event of such a line counts.

    With the launch's own events (``launched``) a mark counts only if the launcher recorded the event: a
    training can print a mark, too. Without them (None) the mark decides.
    """

    def __init__(
        self, launched: Iterable[Event] | None, catalogue: Catalogue, prefixes: Prefixes, events: LogEvents
    ) -> None:
        self._marks_suffice = launched is None
        self._expected = defaultdict[str, deque[Event]](deque)
        for event in launched or ():
            self._expected[event.id].append(event)
        self._seen: set[str] = set()
        self._catalogue = catalogue
        self._prefixes = prefixes
        self._events = events

    def read(self, text: str) -> Event | None:
        """Return the event of a line, None if it is not the launcher's."""
        found = marked(text)
        if found is None:
            return None
        event = found[1]
        if self._marks_suffice:
            return event
        waiting = self._expected.get(event.id)
        if not waiting:
            return None
        self._seen.add(event.id)
        # An event of several lines stays first until another one of its kind follows.
        return waiting.popleft() if len(waiting) > 1 else waiting[0]

    def handle(self, line: Line, event: Event, below: Sequence[bytes] = ()) -> bool:
        """Read the event of a line, and the lines ``below`` it; return False if it was irrelevant."""
        node_events = self._events.of(line.where)
        if event.id == "launch-opened":
            node_events.is_open = True
            _read_opening(event, node_events.homes)
            return True
        if event.id in _ENDS_OF_LAUNCHES:
            node_events.is_open = False
        if event.id == "end-asked":
            node_events.stop_requested_at = node_events.stop_requested_at or line.number
        if event.id == "verdict":
            node_events.recorded = str(event.fields.get("cause") or "")
        if event.id == "node-quoted" and (found := marked(line.text)) is not None:
            node_events.quoted.append(" ".join(found[0].split()))
            return True
        if event.id == "training-finished":
            node_events.finished_at = line.number
            return True
        if ending := ending_of(event, line):
            self._events.end(ending)
            return True
        signature = self._catalogue.of_event(event)
        if signature is None:
            return False
        where, node = line.where, str(event.fields.get("node", ""))
        if signature.role is SignatureRole.CAUSE and node.isdecimal():  # all nodes say which node it was
            where = Location(node=int(node))
        # All nodes of a job name the one that failed first, including that node.
        elif node == str(line.where.filled(self._events.source.where).node):
            return False
        texts = (text_of(data, self._prefixes) for data in below)
        match = self._catalogue.with_following(Match(signature, 0, where), texts)
        self._events.add(match, signature.role, line, where)
        return True

    def handle_unread(self, number: int) -> None:
        """Read events of kinds that no line of the log shows: the log's end was lost."""
        for event_id in self._expected.keys() - self._seen:
            for event in self._expected[event_id]:
                self.handle(parse(number, in_text(event).encode(), self._prefixes), event)


def _read_opening(event: Event, homes: Homes) -> None:
    """Record the host that a launch began on, with its node and its ranks."""
    node, count, host = (event.fields.get(name) for name in ("node_rank", "nproc_per_node", "host"))
    if isinstance(node, int) and isinstance(count, int) and isinstance(host, str):
        homes.open(node, host, range(node * count, (node + 1) * count))
