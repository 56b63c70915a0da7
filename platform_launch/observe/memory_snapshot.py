"""What held a GPU's memory when a rank ran out of it, from a snapshot of CUDA's allocator.

The form is that of ``torch.cuda.memory._snapshot`` (https://docs.pytorch.org/docs/stable/torch_cuda_memory.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from platform_launch.errors import InputError
from platform_launch.observe import plain_pickle
from platform_launch.observe.stacks import PythonFrame
from platform_launch.text import Phrase, joined

_NAME = re.compile(r"memory_.+_(?P<started>\d{8}-\d{6})_rank(?P<rank>\d{1,9})\.pickle")
_LARGEST = 2 * 1024**3
_MOST_OWNERS = 5
_GIB = 1024**3


@dataclass(frozen=True)
class MemoryOwner:
    """A line of the script, and the memory that was allocated there and is still held: bytes and blocks."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class MemorySnapshot:
    """One rank. ``wanted_bytes`` is the allocation that failed, 0 if the history does not contain it."""

    path: Path
    rank: int
    allocated_bytes: int
    reserved_bytes: int
    wanted_bytes: int
    owners: tuple[MemoryOwner, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**asdict(self), "path": str(self.path)}

    def line(self) -> Phrase:
        """Return it as one line: the largest owners first."""
        owners = [
            Phrase("{gib} GiB at {place}", gib=f"{one.bytes / _GIB:.1f}", place=one.place)
            for one in self.owners
        ]
        return Phrase(
            "rank {rank} held {allocated} GiB, and wanted {wanted} GiB more: {owners}",
            rank=self.rank,
            allocated=f"{self.allocated_bytes / _GIB:.1f}",
            wanted=f"{self.wanted_bytes / _GIB:.2f}",
            owners=joined(owners, "; "),
        )


def find_snapshots(folders: Iterable[Path], started: Iterable[str]) -> list[tuple[int, Path]]:
    """Return the snapshots in folders, by rank, of launches with this start time (``20261129-041539``)."""
    wanted = set(started)
    found = []
    for folder in sorted(set(folders)):
        for path in sorted(folder.glob("memory_*_rank*.pickle")):
            match = _NAME.fullmatch(path.name)
            if match and match["started"] in wanted:
                found.append((int(match["rank"]), path))
    return sorted(found)


def read_snapshot(path: Path, rank: int) -> MemorySnapshot:
    """Read a snapshot. Raises InputError, OSError."""
    if path.stat().st_size > _LARGEST:
        raise InputError(Phrase("{path} is larger than {gib} GiB", path=path, gib=_LARGEST // _GIB))
    try:
        document = plain_pickle.load(path.read_bytes())
    except InputError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.message)
        ) from error
    segments = list(_dicts(document, "segments"))
    held: dict[str, list[int]] = {}
    for segment in segments:
        for block in _dicts(segment, "blocks"):
            if block.get("state") == "active_allocated":
                counts = held.setdefault(_place(block), [0, 0])
                counts[0] += _number(block.get("size"))
                counts[1] += 1
    largest = sorted(held.items(), key=lambda item: (-item[1][0], item[0]))[:_MOST_OWNERS]
    return MemorySnapshot(
        path,
        rank,
        sum(size for size, _ in held.values()),
        sum(_number(segment.get("total_size")) for segment in segments),
        _wanted(document),
        tuple(MemoryOwner(place, size, blocks) for place, (size, blocks) in largest),
    )


def _place(block: Mapping[str, object]) -> str:
    """Return the innermost line of the user's own code, otherwise the innermost of all."""
    frames = [
        PythonFrame(str(frame.get("filename")), _number(frame.get("line")), str(frame.get("name")))
        for frame in _dicts(block, "frames")
    ]
    own = next((frame for frame in frames if not frame.is_library), next(iter(frames), None))
    return str(own) if own is not None else Phrase("a place that was not recorded")


def _wanted(document: object) -> int:
    traces = document.get("device_traces") if isinstance(document, dict) else None
    sizes = [
        _number(entry.get("size"))
        for trace in (traces if isinstance(traces, list) else [])
        for entry in (trace if isinstance(trace, list) else [])
        if isinstance(entry, dict) and entry.get("action") == "oom"
    ]
    return sizes[-1] if sizes else 0


def _dicts(parent: object, name: str) -> Iterable[Mapping[str, object]]:
    found = parent.get(name) if isinstance(parent, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else 0
