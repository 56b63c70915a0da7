"""Whether MASTER_ADDR means anything on this node: torch would ask the resolver for many silent minutes."""

from __future__ import annotations

import time

from platform_launch.errors import shown
from platform_launch.hardware import names
from platform_launch.procguard.api.wire import WorkerOrder
from platform_launch.sentences import Sentence, sentence

# Shorter than the time a group waits for its workers, so that the reason is told within it.
_ANSWER_S = 15.0


class MasterLookup:
    """Asks in the background, since a resolver may take minutes and an agent's loop waits for nothing."""

    def __init__(self) -> None:
        self._asked = ""
        self._inquiry: names.ResolverInquiry | None = None
        self._since = 0.0

    def why_not(self, order: WorkerOrder) -> tuple[bool, Sentence | None]:
        """Tell whether it is known yet, and why the order's master cannot be found, None where it can."""
        master = order.environment.get("MASTER_ADDR", "")
        if not master:
            return True, None
        if self._inquiry is None or self._asked != master:
            self._asked, self._inquiry, self._since = master, names.addresses_of(master), time.monotonic()
        answer = self._inquiry.answer_by(0.0)
        if answer.late and time.monotonic() - self._since < _ANSWER_S:
            return False, None
        self._inquiry = None
        if not answer.failure:
            return True, None
        return True, sentence("master-unresolved", master=shown(master), problem=answer.failure)
