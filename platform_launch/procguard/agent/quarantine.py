"""Reads whether this node is in quarantine, in a separate thread: shared storage may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.health import quarantine
from platform_launch.procguard.api.wire import QuarantineReport
from platform_launch.sentences import Sentence

_EVERY_S = 10.0
# A first heartbeat without this would tell the server that the node was released.
_FIRST_S = 2.0


class QuarantineWatch:
    """Reads the quarantine file every ten seconds, and releases this node if the server asks for that.

    ``names`` are the node's possible names there, ``gpus`` the UUIDs of its GPUs; ``file`` is None without a
    quarantine file. ``held`` is the node's quarantine now.
    """

    def __init__(
        self,
        file: Path | None,
        names: Collection[str],
        gpus: Collection[str],
        log: Callable[[str, str], None],
    ) -> None:
        self.held: QuarantineReport | None = None
        self._file = file
        self._candidates = dict.fromkeys(names, gpus)
        self._log = log
        self._logged = ""
        self._wanted: float | None = None
        self._release_requested = threading.Event()
        self._has_looked = threading.Event()

    def start(self) -> None:
        """Start reading, for the life of the process; wait briefly for the first reading."""
        if self._file is not None:
            threading.Thread(target=self._run, args=(self._file,), daemon=True).start()
            self._has_looked.wait(_FIRST_S)

    def release(self, since: float | None) -> None:
        """Request the end of the quarantine that began at ``since``; a repeated request is carried out
        once.
        """
        if since is not None and since != self._wanted:
            self._wanted = since
            self._release_requested.set()

    def poll(self, file: Path) -> None:
        """Release the node if requested, and read the file."""
        trouble = ""
        try:
            held = self._read(file)
            if held is not None and held.since == self._wanted:
                try:
                    quarantine.release(file, held.node, "through ProcGuard")
                except InputError as error:
                    trouble = str(error)  # tried again at the next poll
                else:
                    held = self._read(file)
        except InputError as error:
            self._log_once("WARN", f"{error}; it is unknown whether this node is in quarantine")
            return
        self.held = None if held is None else _report(held, trouble)
        self._log_once("WARN", self._describe(held, trouble))

    def _read(self, file: Path) -> quarantine.QuarantinedNode | None:
        found = quarantine.quarantined(quarantine.read(file), self._candidates)
        return next(iter(found.values()), None)

    def _describe(self, held: quarantine.QuarantinedNode | None, trouble: str) -> str:
        if held is None:
            return ""
        return f"this node is {held.describe()}" + (f"; {trouble}" if trouble else "")

    def _log_once(self, level: str, text: str) -> None:
        if text != self._logged:
            self._log(level if text else "INFO", text or "this node is no longer in quarantine")
        self._logged = text

    def _run(self, file: Path) -> None:
        while True:
            self.poll(file)
            self._has_looked.set()
            self._release_requested.wait(_EVERY_S)
            self._release_requested.clear()


def _report(held: quarantine.QuarantinedNode, trouble: str) -> QuarantineReport:
    reason_sentence = None
    with suppress(ValueError, RecursionError):  # anybody may write that file
        reason_sentence = Sentence.read(held.sentence) if held.sentence else None
    return QuarantineReport(
        name=held.node[:400],
        since=held.since,
        until=held.until,
        reason=held.reason,
        reason_sentence=reason_sentence,
        job=held.job[:400],
        trouble=trouble[:400],
    )
