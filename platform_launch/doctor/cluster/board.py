"""The meeting place: a TCPStore on node 0, where each value is JSON and no wait is without a limit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

_STEP_S = 0.05


class SilenceError(Exception):
    """Nothing was said in time; the message names who did not and what was waited for."""


class Board:
    """What lies in the store. Opening it imports torch; raises RuntimeError when that cannot be done."""

    def __init__(self, host: str, port: int, *, hosting: bool, limit_s: float) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        limit = timedelta(seconds=limit_s)
        self._store = TCPStore(host, port, None, hosting, limit, wait_for_workers=False)

    def put(self, key: str, value: object) -> None:
        """Lay down a value."""
        self._store.set(key, json.dumps(value))

    def put_first(self, key: str, value: object) -> Any:
        """Lay down a value where none is, and return the one that lies there now."""
        return json.loads(self._store.compare_set(key, "", json.dumps(value)))

    def take(self, key: str, limit_s: float, waiting_for: str) -> Any:
        """Wait for a value. Raises SilenceError."""
        try:
            self._store.wait([key], timedelta(seconds=limit_s))
            return json.loads(self._store.get(key))
        except RuntimeError as error:  # torch.distributed.DistError: out of time, or the connection is lost
            raise SilenceError(f"node 0 said nothing within {limit_s:.0f} s: {waiting_for}") from error

    def collect(self, keys: Iterable[str], limit_s: float) -> dict[str, Any]:
        """Wait until all keys have values, and return those that came in time."""
        missing = set(keys)
        found: dict[str, Any] = {}
        deadline = time.monotonic() + limit_s
        while missing:
            for key in [key for key in missing if self._store.check([key])]:
                found[key] = json.loads(self._store.get(key))
                missing.discard(key)
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(_STEP_S)
        return found

    def count(self, key: str, by: int) -> int:
        """Add to a counter and return it."""
        return int(self._store.add(key, by))
