"""Ranks from a shared folder, if nothing else distinguishes the nodes: ``--ranks-from FOLDER``.

A node claims the lowest free rank by creating a new file, and keeps it by incrementing a number in it.
Nothing depends on clocks: a claim whose number does not change while it is watched is stale, and goes to the
node that creates its next generation first.

    <job>.rank-<rank>.<generation>     {"host", "address", "job", "nonce", "count"}, rewritten every second

Others may be able to write to the folder: a claim is a regular file and no link, a node writes only to the
file that it created, and believes only claims with the same owner.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread

from platform_launch.console import Console
from platform_launch.environment import Environment
from platform_launch.errors import InputError, NodesAbsentError, TopologyError, UsageError, shown
from platform_launch.plan.request import Request
from platform_launch.text import Phrase, joined
from platform_launch.topology import Overrides
from platform_launch.values import dataclass

_COUNT_EVERY_S = 1.0
# A file server that stalls for less than this costs no node its rank.
_LEFT_OVER_S = 15.0
_LOOK_S = 0.2
_LONGEST_CLAIM = 4096


@dataclass(frozen=True)
class NodeIdentity:
    """The node that needs a rank. ``command`` is what it will run: all nodes of a job run the same."""

    host: str
    address: str
    command: tuple[str, ...]

    @property
    def job(self) -> str:
        """Return what must be equal on all nodes."""
        return sha256(json.dumps(self.command).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Claim:
    rank: int
    generation: int
    path: Path
    host: str = ""
    address: str = ""
    job: str = ""
    nonce: str = ""
    count: int = -1


@contextmanager
def holding_rank(folder: Path, request: Request, env: Environment, timeout_s: float) -> Iterator[Overrides]:
    """Hold a rank from a folder, and yield the equivalent flags.

    Raises UsageError without a number of nodes or with flags that give a rank, otherwise as
    :meth:`RankFolder.claim_rank`.
    """
    flags = request.overrides
    if flags.nnodes is None:
        raise UsageError("--ranks-from without --nnodes: expected the number of nodes", "add --nnodes N")
    if flags.node_rank is not None or flags.master_addr is not None:
        raise UsageError(
            "--ranks-from cannot be combined with --node-rank or --master-addr",
            "leave the others out",
        )
    console = Console()
    program = str(request.script.resolve()) if request.script else request.module or request.example or ""
    command = (str(flags.nnodes), request.started_by, program, *request.arguments)
    me = NodeIdentity(env.hostname, env.address, command)
    ranks = RankFolder(folder.absolute(), flags.nnodes, request.job_name or "job", console.info)
    claim = ranks.claim_rank(me, timeout_s)
    try:
        console.info(
            Phrase(
                "rank {rank} of {nnodes} from {folder}; node 0 is {address}",
                rank=claim.node_rank,
                nnodes=flags.nnodes,
                folder=folder,
                address=claim.master_addr,
            )
        )
        yield replace(flags, node_rank=claim.node_rank, master_addr=claim.master_addr)
    finally:
        claim.release()


class RankClaim:
    """A rank that this node holds until :meth:`release`. ``master_addr`` is node 0's address."""

    def __init__(self, node_rank: int, path: Path, values: dict[str, object], inode: int) -> None:
        self.node_rank = node_rank
        self._inode = inode
        self.master_addr = ""
        self.path = path
        self._values = values
        self._released = Event()
        # In a thread: a file server that hangs must not block the launch.
        self._thread = Thread(target=self._count, name="rank", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the rank back."""
        self._released.set()
        self._thread.join(2 * _COUNT_EVERY_S)
        with suppress(OSError):
            self.path.unlink()

    def _count(self) -> None:
        count = 0
        while not self._released.wait(_COUNT_EVERY_S):
            count += 1
            with suppress(OSError):
                _write(self.path, {**self._values, "count": count}, self._inode)


class RankFolder:
    """The ranks of one job in a shared folder. ``log(text)`` receives what is waited for."""

    def __init__(self, folder: Path, nnodes: int, job_name: str, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._nnodes = nnodes
        self._log = log
        self._prefix = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', job_name) or 'job'}.rank-"
        # Claim by (path, nonce) → its last count, and when that was first seen; None until it has changed.
        self._seen: dict[tuple[Path, str], tuple[int, float]] = {}
        self._alive: set[tuple[Path, str]] = set()
        self._owner: int | None = None  # of this node's own claim, once it has one

    def claim_rank(self, me: NodeIdentity, timeout_s: float) -> RankClaim:
        """Claim the lowest free rank, and find node 0's address.

        Raises InputError if the folder cannot be used, TopologyError if it is another job's or all ranks are
        taken, NodesAbsentError if node 0 does not appear in time.
        """
        deadline = time.monotonic() + timeout_s
        claim = self._claim_free_rank(me)
        try:
            claim.master_addr = me.address if claim.node_rank == 0 else self._address_of_node_0(me, deadline)
        except BaseException:
            claim.release()
            raise
        return claim

    def _claim_free_rank(self, me: NodeIdentity) -> RankClaim:
        announced = False
        while True:
            claims = self._read_claims(me)
            for rank in range(self._nnodes):
                mine = self._try(rank, claims.get(rank, []), me)
                if mine is not None:
                    return mine
            alive = {
                rank: [claim for claim in found if self._is_alive(claim)] for rank, found in claims.items()
            }
            if all(alive.get(rank) for rank in range(self._nnodes)):
                holders = joined(
                    Phrase("node {rank} ({place})", rank=rank, place=shown(alive[rank][0].host))
                    for rank in sorted(alive)
                )
                raise TopologyError(
                    Phrase(
                        "--ranks-from {folder}: all {nnodes} ranks are taken ({holders}): "
                        "this is a node too many",
                        folder=self._folder,
                        nnodes=self._nnodes,
                        holders=holders,
                    ),
                    ("start exactly --nnodes nodes; use another --job-name or folder for a second job"),
                )
            if not announced:
                announced = True
                self._log(
                    f"all ranks in {self._folder} have an owner: watching for {_LEFT_OVER_S:g} s who is left"
                )
            time.sleep(_LOOK_S)

    def _try(self, rank: int, found: list[_Claim], me: NodeIdentity) -> RankClaim | None:
        """Create the next generation of a free rank; None if another node holds it, or may."""
        if not all(self._is_left_over(claim) for claim in found):
            return None
        generation = max((claim.generation for claim in found), default=-1) + 1
        path = self._folder / f"{self._prefix}{rank}.{generation}"
        nonce = os.urandom(8).hex()
        values: dict[str, object] = {
            "host": me.host,
            "address": me.address,
            "job": me.job,
            "nonce": nonce,
            "count": 0,
        }
        try:
            created = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            at = os.fstat(created)
            os.close(created)
            _write(path, values, at.st_ino)
        except FileExistsError:
            return None
        except OSError as error:
            raise InputError(
                Phrase(
                    "--ranks-from {folder}: cannot create {name}: {problem}",
                    folder=self._folder,
                    name=path.name,
                    problem=error.strerror,
                ),
                "name a folder that every node can write, on storage that they share",
            ) from error
        left_over = {claim.path for claim in found}
        if any(claim.path not in left_over | {path} for claim in self._claims() if claim.rank == rank):
            # Another node created a generation at the same time, from an older view: both step back.
            path.unlink(missing_ok=True)
            time.sleep(random.uniform(0, 2 * _LOOK_S))  # noqa: S311 - spreads nodes, keeps no secret
            return None
        for old in left_over:
            with suppress(OSError):
                old.unlink()
        self._owner = at.st_uid
        return RankClaim(rank, path, values, at.st_ino)

    def _address_of_node_0(self, me: NodeIdentity, deadline: float) -> str:
        report_at = time.monotonic() + 2.0
        while True:
            for claim in self._read_claims(me).get(0, []):
                if self._is_alive(claim):
                    return claim.address
            now = time.monotonic()
            if now >= deadline:
                raise NodesAbsentError(
                    Phrase("--ranks-from {folder}: no node has rank 0", folder=self._folder),
                    "did the other nodes start, with the same folder, --nnodes and --job-name?",
                )
            if now >= report_at:
                report_at = now + 10.0
                self._log(f"waiting for node 0 to show itself in {self._folder}")
            time.sleep(_LOOK_S)

    def _read_claims(self, me: NodeIdentity) -> dict[int, list[_Claim]]:
        """Return the claims of each rank. Raises TopologyError if a live one is another job's."""
        now, claims = time.monotonic(), list(self._claims())
        found: dict[int, list[_Claim]] = {}
        for claim in claims:
            key = (claim.path, claim.nonce)
            count, since = self._seen.setdefault(key, (claim.count, now))
            if claim.count != count:
                self._alive.add(key)
                self._seen[key] = (claim.count, now)
            elif now - since >= _LEFT_OVER_S:
                self._alive.discard(key)
            found.setdefault(claim.rank, []).append(claim)
            if claim.job != me.job and key in self._alive:
                raise TopologyError(
                    Phrase(
                        "--ranks-from {folder}: {host} runs another job there",
                        folder=self._folder,
                        host=shown(claim.host),
                    ),
                    ("run the same command on all nodes; use another --job-name or folder for a second job"),
                )
        return found

    def _is_alive(self, claim: _Claim) -> bool:
        return (claim.path, claim.nonce) in self._alive

    def _is_left_over(self, claim: _Claim) -> bool:
        _, since = self._seen.get((claim.path, claim.nonce), (0, time.monotonic()))
        return time.monotonic() - since >= _LEFT_OVER_S

    def _claims(self) -> Iterator[_Claim]:
        shape = re.compile(re.escape(self._prefix) + r"([0-9]{1,6})\.([0-9]{1,6})")
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names alone are wanted
        except OSError as error:
            raise InputError(
                Phrase(
                    "--ranks-from {folder} cannot be read: {problem}",
                    folder=self._folder,
                    problem=error.strerror,
                ),
                "name an existing folder that every node can write, on storage that they share",
            ) from error
        for name in names:
            match = shape.fullmatch(name)
            if match:
                yield _read(int(match[1]), int(match[2]), self._folder / name, self._owner)


def _open(path: Path, flags: int) -> tuple[int, os.stat_result]:
    """Open a claim, which is no link, and no pipe that would be waited for. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    at = os.fstat(descriptor)
    if not stat.S_ISREG(at.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor, at


def _write(path: Path, values: dict[str, object], inode: int) -> None:
    """Rewrite an existing claim in place: one that was removed must not reappear."""
    descriptor, at = _open(path, os.O_WRONLY)
    try:
        if at.st_ino != inode:  # somebody put another file in its place
            return
        os.pwrite(descriptor, json.dumps(values).encode().ljust(256) + b"\n", 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(rank: int, generation: int, path: Path, owner: int | None) -> _Claim:
    """Read a claim; one that is being written or is invalid has no owner, and becomes stale."""
    try:
        descriptor, at = _open(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            values = json.loads(file.read(_LONGEST_CLAIM))
        if owner not in (None, at.st_uid):
            return _Claim(rank, generation, path)
        texts = {name: str(values[name])[:200] for name in ("host", "address", "job", "nonce")}
        return _Claim(rank, generation, path, **texts, count=int(values["count"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return _Claim(rank, generation, path)
