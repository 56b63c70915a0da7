"""What the coordinator itself writes; where somebody changes it, it is written again."""

from __future__ import annotations

from platform_launch.rendezvous import protocol
from platform_launch.rendezvous.authentication import Seal
from platform_launch.rendezvous.messages import Message
from platform_launch.rendezvous.protocol import JoinNotice, Now
from platform_launch.rendezvous.store import Store


class OwnEntries:
    """All of them by key, sealed as they lie in the store. Methods raise StoreError."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store = store
        self._seal = seal
        self._entries: dict[str, bytes] = {}
        self._editions = dict.fromkeys((protocol.STATE, protocol.MEMBERS, protocol.REQUESTS), 0)
        self._count = 0

    def put(self, key: str, entry: Message, seal: Seal | None = None) -> None:
        """Write an entry, which replaces the last one."""
        self._entries[key] = (seal or self._seal).close(key, entry)
        self._store.write(key, self._entries[key])
        if key in self._editions:
            self._editions[key] += 1

    def notify(self, slot: int, notice: JoinNotice) -> None:
        """Tell one node what became of it."""
        self.put(f"notice/{slot}", notice)

    def forget_notice(self, slot: int) -> None:
        """Let the notice of a slot go, which is cleared."""
        self._entries.pop(f"notice/{slot}", None)

    def write_now(self) -> None:
        """Give a sign of life, and say which editions there are."""
        self._count += 1
        now = Now(self._count, *self._editions.values())
        self._store.write(protocol.NOW, self._seal.close(protocol.NOW, now))

    def restore(self) -> list[str]:
        """Write again what somebody else changed or took away, and return its keys."""
        found = zip(self._entries, self._store.read(list(self._entries)), strict=True)
        changed = [key for key, held in found if held != self._entries[key]]
        for key in changed:
            self._store.write(key, self._entries[key])
        return changed
