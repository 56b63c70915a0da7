"""Traces of torch's profiler, one per rank → one trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.text import Phrase

# The rows of a rank are adjacent, above those of the next rank.
_ROWS_PER_RANK = 1000
# Events that belong together across rows: their ids are unique in one trace only.
_LINKED = ("s", "t", "f", "b", "n", "e")


@dataclass(frozen=True)
class TracePart:
    """The gzipped trace of one rank; its clock is ``offset_s`` ahead of that of node 0."""

    rank: int
    node_rank: int
    host: str
    path: Path
    offset_s: float = 0.0


def merge(parts: Iterable[TracePart], output: Path) -> int:
    """Write one gzipped trace; return the number of its events. One rank's trace is in memory at a time.

    Raises InputError if a part cannot be read, OSError.
    """
    count, base_ns = 0, None
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with gzip.open(output, "wt", compresslevel=5, encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for part in parts:
            document = _read(part)
            own_ns = document.get("baseTimeNanoseconds")
            own_ns = own_ns if isinstance(own_ns, int) else 0
            base_ns = own_ns if base_ns is None else base_ns
            shift_us = (own_ns - base_ns) / 1e3 - part.offset_s * 1e6
            for event in _events(document, part, shift_us):
                file.write((",\n" if count else "") + encode(event))
                count += 1
        file.write(f'\n], "baseTimeNanoseconds": {base_ns or 0}}}\n')
    return count


def _read(part: TracePart) -> Mapping[str, object]:
    try:
        with gzip.open(part.path, "rb") as file:
            document = json.load(file)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise InputError(
            Phrase("the trace of rank {rank} cannot be read: {problem}", rank=part.rank, problem=str(error))
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(Phrase("the trace of rank {rank} has no traceEvents", rank=part.rank))
    return document


def _events(
    document: Mapping[str, object], part: TracePart, shift_us: float
) -> Iterator[Mapping[str, object]]:
    """Yield a rank's events on node 0's clock. Each of its processes and devices becomes a row of its own."""
    found = document["traceEvents"]
    events = (
        [one for one in found if isinstance(one, dict) and "ph" in one] if isinstance(found, list) else []
    )
    labels = {one.get("pid"): _label(one) for one in events if one.get("name") == "process_labels"}
    rows: dict[object, int] = {}
    for event in events:
        own = event.get("pid", "")
        if own not in rows:
            rows[own] = part.rank * _ROWS_PER_RANK + len(rows)
            yield from _titles(rows[own], labels.get(own, own if isinstance(own, str) else ""), part)
        if event["ph"] == "M" and event.get("name") in (
            "process_name",
            "process_labels",
            "process_sort_index",
        ):
            continue
        event["pid"] = rows[own]
        if isinstance(at_us := event.get("ts"), int | float):
            event["ts"] = round(at_us + shift_us, 3)
        if event["ph"] in _LINKED and "id" in event:
            event["id"] = f"{part.rank}.{event['id']}"
        yield event


def _label(event: Mapping[str, object]) -> str:
    values = event.get("args")
    return str(values.get("labels", "")) if isinstance(values, dict) else ""


def _titles(row: int, label: str, part: TracePart) -> Iterator[Mapping[str, object]]:
    device = f", {label}" if label and label != "CPU" else ""
    name = f"rank {part.rank}{device} (node {part.node_rank}, {part.host})"
    for kind, values in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": row})):
        yield {"ph": "M", "name": kind, "pid": row, "tid": 0, "args": values}
