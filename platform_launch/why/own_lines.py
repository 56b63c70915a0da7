"""What this launcher says in a log, known by ids: from the event file beside it, else from the marks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from platform_launch.events import Event, marked


class OwnLines:
    """Tells the launcher's lines of one log from all others.

    With the launch's own ``events`` a mark counts only where the launcher said so: a training can print one
    as well. Without them (None) the mark is all there is.
    """

    def __init__(self, events: Iterable[Event] | None) -> None:
        self._expected: Mapping[str, deque[Event]] | None = None
        if events is not None:
            expected: defaultdict[str, deque[Event]] = defaultdict(deque)
            for said in events:
                expected[said.id].append(said)
            self._expected = expected

    def read(self, text: str) -> Event | None:
        """Return the event of a line, None where it is not the launcher's."""
        found = marked(text)
        if found is None:
            return None
        said = found[1]
        if self._expected is None:
            return said
        waiting = self._expected.get(said.id)
        if not waiting:
            return None
        # An event of several lines stands at the head until another one of its kind follows.
        return waiting.popleft() if len(waiting) > 1 else waiting[0]

    def unread(self, seen: Iterable[str]) -> list[Event]:
        """Return the events of kinds that no line of the log showed: its end was lost."""
        if self._expected is None:
            return []
        missing = self._expected.keys() - set(seen)
        return [said for event_id in missing for said in self._expected[event_id]]
