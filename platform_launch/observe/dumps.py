"""Flight recorder dumps: torch's record of a rank's last collectives, for NCCL and gloo.

A dump is a pickle of plain dictionaries and lists (NCCL's watchdog writes one per rank), or the same as JSON
from a worker's own server. Sources: torch 2.13, FlightRecorder.hpp and FlightRecorder.cpp. gloo's dump (torch
2.13) has the numbers of ``pg_status`` as text, and lists the members of at most one group.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.text import Phrase

# 2,000 entries with stacks are far smaller.
_LARGEST_DUMP = 256 * 1024 * 1024
_GLOO = "gloo:"
# Limits of nested folders, and of their files.
_DEEPEST, _MOST_FILES = 3, 100_000
# A stuck rank may have enqueued its last operation this long before another's recorded first one.
_APART_S = 600.0
# Characters that are shown of a value.
_MOST_WRITTEN = 200
_RANK_IN_NAME = re.compile(r"(\d+)(?:\.json|\.pickle|\.pkl)?$")


@dataclass(frozen=True)
class Collective:
    """One operation of a process group, as a rank enqueued it. ``sequence`` counts those of its group from 1.

    ``name`` is the recorder's, such as ``nccl:all_reduce``. ``shapes`` are those of its inputs. ``frame`` is
    the innermost Python line that called it, ``file:line (function)``, if the dump has stacks. ``thread`` is
    the id of the thread that issued it, 0 if unknown.
    """

    group: str
    sequence: int
    name: str
    shapes: str = ""
    point_to_point: bool = False
    frame: str = ""
    thread: int = 0

    def __str__(self) -> str:
        return f"{self.kind} #{self.sequence}"

    @property
    def kind(self) -> str:
        """What it does, without the backend: ``all_reduce``."""
        return self.name.partition(":")[2] or self.name

    @property
    def on_gloo(self) -> bool:
        """Whether CPUs do it, with no device that could be stuck."""
        return self.name.startswith(_GLOO)


@dataclass(frozen=True)
class GroupStatus:
    """How far a rank is in one process group; numbers are sequence numbers, None if the dump has none.

    ``ranks`` are the group's, in its own order; empty if unknown. ``operations`` is the number of enqueued
    plus completed operations, including sends and receives.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    enqueued: int | None = None
    completed: int | None = None
    operations: int = 0


@dataclass(frozen=True)
class RankTrace:
    """One rank's dump: its groups by name, and the operations that it has enqueued but not completed, oldest
    first.

    ``earliest_s`` and ``latest_s`` are when the first and the last of its operations were enqueued, by the
    rank's clock (time.time()); 0 if it recorded none.
    """

    rank: int
    groups: Mapping[str, GroupStatus] = field(default_factory=dict)
    pending: tuple[Collective, ...] = ()
    earliest_s: float = 0.0
    latest_s: float = 0.0


def find_dumps(paths: Iterable[Path]) -> dict[int, Path]:
    """Return the dumps among files and folders, and in folders below them, by the rank that ends each name.

    If a folder has the dumps of several launches, whose names differ before the rank, only those of the last.
    """
    found: dict[int, Path] = {}
    for path in paths:
        if not path.is_dir():
            found |= _by_rank([path])
            continue
        launches: dict[str, dict[Path, float]] = {}
        for file in _files_below(path):
            with suppress(FileNotFoundError):  # a running job replaces its dumps
                if _RANK_IN_NAME.search(file.name) and file.is_file() and looks_like_dump(file):
                    written = file.stat().st_mtime
                    launches.setdefault(_RANK_IN_NAME.sub("", file.name), {})[file] = written
        if launches:
            last = max(launches.values(), key=lambda files: max(files.values()))
            found |= _by_rank(last)
    return found


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and below it, because people collect one folder per node."""
    found: list[Path] = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(folders) if len(Path(at).relative_to(folder).parts) < _DEEPEST else []
        found += [Path(at, name) for name in sorted(names)]
        if len(found) > _MOST_FILES:
            break
    return found[:_MOST_FILES]


def last_job(traces: Mapping[int, RankTrace]) -> set[int]:
    """Return the ranks whose dumps are of the job that ran last.

    The ranks of a job run at the same time, so their records overlap. A dump without times may be of any job.
    """
    known = sorted(
        (trace.earliest_s, trace.latest_s, rank) for rank, trace in traces.items() if trace.latest_s
    )
    jobs: list[set[int]] = []
    until_s = float("-inf")
    for earliest_s, latest_s, rank in known:
        if not jobs or earliest_s > until_s + _APART_S:
            jobs.append(set())
        jobs[-1].add(rank)
        until_s = max(until_s, latest_s)
    timeless = {rank for rank, trace in traces.items() if not trace.latest_s}
    return (jobs[-1] if jobs else set()) | timeless


def _by_rank(files: Iterable[Path]) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for file in sorted(files, key=_written):  # of two dumps of a rank, the newer one
        match = _RANK_IN_NAME.search(file.name)
        if match:
            found[int(match[1])] = file
    return found


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def looks_like_dump(path: Path) -> bool:
    """Return whether the first bytes are those of a pickle (protocol 2 or newer) or of a JSON object with
    entries.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5:
        return b"entries" in head or b"pg_config" in head or b"version" in head
    return head.lstrip()[:1] == b"{" and (b'"entries"' in head or b'"pg_status"' in head)


def read_dump(path: Path, rank: int) -> RankTrace:
    """Read one rank's dump. Raises InputError, or OSError if the file cannot be read."""
    if path.stat().st_size > _LARGEST_DUMP:
        raise InputError(
            Phrase(
                "{path} is larger than {largest} MiB: expected a dump of one rank",
                path=path,
                largest=_LARGEST_DUMP >> 20,
            )
        )
    try:
        return parse_dump(path.read_bytes(), rank)
    except InputError as error:
        raise InputError(Phrase("{path}: {problem}", path=path, problem=error.message)) from None


def parse_dump(data: bytes, rank: int) -> RankTrace:
    """Parse a dump, which a stranger may have written. Raises InputError."""
    document = _load(data)
    entries = document.get("entries", []) if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
        raise InputError("it has no 'entries': expected a dump of torch's flight recorder")
    try:
        return _trace(document, [entry for entry in entries if isinstance(entry, dict)], rank)
    except RecursionError:
        raise InputError("its values are nested too deeply: expected a dump of one rank") from None


def operations_since(data: bytes, since_s: float) -> dict[str, list[tuple[int, str, float, float]]]:
    """Return the collectives of a dump by group: number, kind, when enqueued, and duration on the device.

    Times are in seconds (time.time()); a duration of 0 is unknown. Raises InputError.
    """
    document = _load(data)
    entries = document.get("entries", []) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InputError("it has no 'entries': expected a dump of torch's flight recorder")
    found: dict[str, list[tuple[int, str, float, float]]] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        at_s = (_whole(entry.get("time_created_ns")) or 0) / 1e9
        if at_s < since_s:
            continue
        duration_ms = entry.get("duration_ms")
        duration_s = duration_ms / 1e3 if isinstance(duration_ms, (int, float)) else 0.0
        kind = f"{entry.get('profiling_name', '?')} {entry.get('input_sizes', '')}"[:80]
        sequence = _whole(entry.get("collective_seq_id")) or 0
        found.setdefault(_group_of(entry), []).append((sequence, kind, at_s, max(duration_s, 0.0)))
    return found


def _trace(document: dict[str, object], entries: list[dict[str, object]], rank: int) -> RankTrace:
    groups = _groups(document, entries)
    pending = []
    by_gloo: dict[str, list[tuple[int, bool]]] = {}
    for entry in entries:
        group = _group_of(entry)
        done = groups[group].completed if group in groups else None
        collective = _collective(entry, group)
        ended = bool(entry.get("retired")) or entry.get("state") == "completed"
        if collective.on_gloo and not collective.point_to_point:
            by_gloo.setdefault(group, []).append((collective.sequence, ended))
        if ended:
            continue
        counts = not collective.point_to_point and not (collective.on_gloo and "retired" in entry)
        if counts and done is not None and collective.sequence <= done:
            continue
        pending.append(collective)
    for group, numbers in by_gloo.items():
        # gloo's own counts include sends and receives, which its recorder does not keep.
        enqueued = max(number for number, _ in numbers)
        completed = max((number for number, ended in numbers if ended), default=0)
        groups[group] = replace(groups[group], enqueued=enqueued, completed=completed)
    created = [at for entry in entries if (at := _whole(entry.get("time_created_ns")))]
    times = (min(created) / 1e9, max(created) / 1e9) if created else (0.0, 0.0)
    return RankTrace(rank, groups, tuple(pending), *times)


def _load(data: bytes) -> object:
    if data.lstrip()[:1] == b"{":
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InputError(Phrase("it is not complete JSON: {problem}", problem=error)) from None
    # a launch that observes its ranks requests JSON
    from platform_launch.observe.plain_pickle import load

    return load(data)


def _groups(document: dict[str, object], entries: list[dict[str, object]]) -> dict[str, GroupStatus]:
    config = document.get("pg_config")
    config = config if isinstance(config, dict) else {}
    status = document.get("pg_status")
    status = status if isinstance(status, dict) else {}
    names = [str(name) for name in config if str(name)]
    name_of = {written(entry.get("pg_id")): _group_of(entry) for entry in entries}
    if len(names) == len(status):
        # Both count the groups of this rank in the order of their creation.
        by_creation = zip(sorted(map(str, status), key=_number), sorted(names, key=_number), strict=True)
        name_of = {**dict(by_creation), **name_of}
    groups: dict[str, GroupStatus] = {}
    for name in names:
        group = config.get(name)
        group = group if isinstance(group, dict) else {}
        groups[name] = GroupStatus(name, written(group.get("desc", "")), _ranks(group.get("ranks")))
    for pg_id, counts in status.items():
        name = name_of.get(str(pg_id), str(pg_id))
        if not isinstance(counts, dict):
            continue
        known = groups.get(name, GroupStatus(name))
        enqueued, completed = (counts.get(f"last_{what}_collective") for what in ("enqueued", "completed"))
        counted = _whole(enqueued), _whole(completed)
        groups[name] = replace(
            known, enqueued=counted[0], completed=counted[1], operations=sum(filter(None, counted))
        )
    for entry in entries:
        name = _group_of(entry)
        if name not in groups:
            groups[name] = GroupStatus(name, _description_of(entry))
        elif not groups[name].description:
            groups[name] = replace(groups[name], description=_description_of(entry))
    return groups


def _collective(entry: dict[str, object], group: str) -> Collective:
    point_to_point = bool(entry.get("is_p2p"))
    sequence = _whole(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id")) or 0
    frame = ""
    frames = entry.get("frames")
    if isinstance(frames, list):
        usual = (f for f in frames if isinstance(f, dict) and "/torch/" not in written(f.get("filename", "")))
        first = next(usual, None)
        if first is not None:
            file, line, name = (written(first.get(part)) for part in ("filename", "line", "name"))
            frame = f"{file}:{line} ({name})"
    shapes, operation = written(entry.get("input_sizes", "")), written(entry.get("profiling_name", "?"))
    return Collective(
        group,
        sequence,
        operation[:100],
        shapes,
        point_to_point,
        frame,
        _whole(entry.get("thread_id")) or 0,
    )


def _group_of(entry: dict[str, object]) -> str:
    group = entry.get("process_group")
    return written(group[0] if isinstance(group, list) and group else entry.get("pg_id", ""))


def _description_of(entry: dict[str, object]) -> str:
    group = entry.get("process_group")
    text = written(group[1]) if isinstance(group, list) and len(group) > 1 else ""
    return "" if text == "undefined" else text


def written(value: object, most: int = _MOST_WRITTEN) -> str:
    """Return a value as text of at most ``most`` characters, in at most as many steps.

    Values of a pickle may contain each other, so the full text may be endless.
    """
    if isinstance(value, str):
        return value[:most]
    parts, left = list[str](), most
    open_values: list[object] = [value]
    while open_values and left > 0:
        one = open_values.pop()
        if isinstance(one, _Close):
            part = one.sign
        elif isinstance(one, list):
            part, within = "[", [part for item in one[:left] for part in (", ", item)][1:]
            open_values += [_Close("]"), *(_Close(i) if i == ", " else i for i in reversed(within))]
        elif isinstance(one, dict):
            part = "{…}"
        else:
            part = one if isinstance(one, str) else repr(one)[:left]
        parts.append(part)
        left -= len(part)
    return "".join(parts)[:most]


@dataclass(frozen=True)
class _Close:
    """A closing sign to write after the current values."""

    sign: str


def _ranks(ranks: object) -> tuple[int, ...]:
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except ValueError:
            return ()
    return tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()


def _whole(value: object) -> int | None:
    """Read a number that may be text. The recorder's -1 means 0: nothing has happened yet."""
    try:
        return max(0, int(written(value)))
    except ValueError:
        return None


def _number(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdecimal() else (1 << 60, name)
