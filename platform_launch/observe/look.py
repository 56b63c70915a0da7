"""Runs torch's profiler or a debugger in ranks of this node (hook/_platform_launch_look)."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.observe.control import short_path
from platform_launch.observe.workers import HookedProcess, NoAnswerError
from platform_launch.process_stat import catches

# A rank answers when it next executes Python.
CONNECT_LIMIT_S = 10.0
# Stopping the profiler and writing the trace of a busy rank takes a while.
WRITE_LIMIT_S = 120.0


@dataclass(frozen=True)
class RankTraceFile:
    """The trace of one rank, gzipped, ``bytes`` long; ``problem`` is why there is none."""

    rank: int
    pid: int
    bytes: int = 0
    problem: str = ""


@contextmanager
def connected(
    hooked: HookedProcess, request: Mapping[str, object], limit_s: float
) -> Iterator[socket.socket]:
    """Wait for a rank to connect, and send it the request. Raises NoAnswerError."""
    if not hooked.look_signal or not catches(hooked.pid, hooked.look_signal):
        raise NoAnswerError("it does not answer to its signal: a script of its own uses it, or it has ended")
    path = hooked.folder / f"{hooked.pid}.look"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            with short_path(path) as short:
                listening.bind(short)
        except OSError as error:
            raise NoAnswerError(f"somebody else looks into it ({path}: {error.strerror})") from error
        try:
            path.chmod(0o600)
            listening.listen(1)
            listening.settimeout(limit_s)
            os.kill(hooked.pid, hooked.look_signal)
            connection, _ = listening.accept()
        except TimeoutError as error:
            raise NoAnswerError(f"it has executed no Python for {limit_s:g} s") from error
        except OSError as error:
            raise NoAnswerError(f"it cannot be asked: {error.strerror}") from error
        finally:
            path.unlink(missing_ok=True)
    with connection:
        connection.sendall(json.dumps(dict(request)).encode() + b"\n")
        yield connection


def profile_here(
    ranks: Sequence[HookedProcess], seconds: float, wanted: Collection[int] = ()
) -> tuple[RankTraceFile, ...]:
    """Run torch's profiler on ranks of this node at the same time; see :func:`trace_file` for the results."""
    chosen = [one for one in ranks if not wanted or one.rank in wanted]
    if not chosen:
        return ()
    with ThreadPoolExecutor(len(chosen)) as pool:
        return tuple(pool.map(lambda one: _profile(one, seconds), chosen))


def trace_file(folder: Path, pid: int) -> Path:
    """Return where the gzipped trace of a process is."""
    return folder / f"{pid}.trace.gz"


def read_trace(folder: Path, pid: int, offset: int, most_bytes: int) -> bytes:
    """Return a part of a trace; the file is removed once its end has been read."""
    path = trace_file(folder, pid)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(most_bytes)
            over = file.tell() >= path.stat().st_size
    except OSError:
        return b""
    if over:
        path.unlink(missing_ok=True)
    return data


def _profile(hooked: HookedProcess, seconds: float) -> RankTraceFile:
    rank, plain = hooked.rank or 0, hooked.folder / f"{hooked.pid}.trace.json"
    try:
        with connected(hooked, {"do": "profile", "seconds": seconds}, CONNECT_LIMIT_S) as connection:
            connection.settimeout(seconds + WRITE_LIMIT_S)
            answers = [json.loads(line) for line in connection.makefile("rb")]
        problem = next((one["problem"] for one in answers if "problem" in one), "")
        if not problem and not any("done" in one for one in answers):
            problem = "it ended meanwhile"
        if not problem:
            packed = trace_file(hooked.folder, hooked.pid)
            with plain.open("rb") as file, gzip.open(packed, "wb", compresslevel=1) as gzipped:
                shutil.copyfileobj(file, gzipped, 1024 * 1024)
            return RankTraceFile(rank, hooked.pid, packed.stat().st_size)
    except NoAnswerError as error:
        problem = str(error)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"its trace was not written: {error}"
    finally:
        with suppress(OSError):
            plain.unlink(missing_ok=True)
    return RankTraceFile(rank, hooked.pid, problem=problem)
