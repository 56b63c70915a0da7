"""Dumps of flight recorders, made as NCCL's and gloo's are laid out in torch 2.13."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any


def entry(
    sequence: int,
    name: str = "all_reduce",
    *,
    group: str = "0",
    pg_id: int = 0,
    state: str = "scheduled",
    sizes: Sequence[Sequence[int]] = ((8,),),
    p2p: bool = False,
    frames: Sequence[tuple[str, int, str]] = (),
    backend: str = "nccl",
) -> dict[str, Any]:
    """Return one operation as the recorder writes it; ``frames`` innermost first."""
    return {
        "collective_seq_id": 0 if p2p else sequence,
        "p2p_seq_id": sequence if p2p else 0,
        "op_id": sequence,
        "is_p2p": p2p,
        "pg_id": pg_id,
        "process_group": (group, "default_pg" if group == "0" else "undefined"),
        "profiling_name": f"{backend}:{name}",
        "input_sizes": [list(size) for size in sizes],
        "output_sizes": [list(size) for size in sizes],
        "state": state,
        "retired": state == "completed",
        "time_created_ns": 1_700_000_000_000_000_000 + sequence,
        "frames": [{"filename": file, "line": line, "name": function} for file, line, function in frames],
    }


def document(
    entries: Sequence[Mapping[str, Any]],
    *,
    status: Mapping[int, tuple[int, int]],
    groups: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Return a dump: ``status`` says what was enqueued and completed last, ``groups`` who is in them."""
    return {
        "version": "2.10",
        "pg_config": {
            name: {
                "name": name,
                "desc": "default_pg" if name == "0" else "",
                "ranks": json.dumps(list(ranks)),
            }
            for name, ranks in (groups or {}).items()
        },
        "pg_status": {
            str(pg_id): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for pg_id, (enqueued, completed) in status.items()
        },
        "entries": [dict(one) for one in entries],
    }


def nccl(dump: Mapping[str, Any]) -> bytes:
    """Return what NCCL's watchdog writes."""
    return pickle.dumps(dict(dump), protocol=2)


def gloo(dump: Mapping[str, Any]) -> bytes:
    """Return what a worker's server answers: JSON, and every number of a status as text."""
    told = dict(dump)
    told["pg_status"] = {
        name: {key: str(value) for key, value in counts.items()} for name, counts in dump["pg_status"].items()
    }
    return json.dumps(told).encode()
