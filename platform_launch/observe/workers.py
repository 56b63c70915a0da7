"""Asks hooked processes for their rank, their collectives and their stacks."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.observe import processes
from platform_launch.observe.dumps import RankTrace, operations_since, parse_dump
from platform_launch.process_stat import catches

_MOST_BYTES = 64 * 1024 * 1024


class NoAnswerError(Exception):
    """A source did not answer; the message states which one and why."""


@dataclass(frozen=True)
class HookedProcess:
    """A hooked process, as it described itself; ``finished`` if it exited without an exception.

    ``signal`` requests its stacks, ``look_signal`` starts the profiler or debugger; 0 if it does not answer.
    ``described_at`` is when it last described itself (time.time()).
    """

    folder: Path
    pid: int
    rank: int | None
    local_rank: int | None
    main_thread: int | None
    signal: int
    descriptor: int
    finished: bool = False
    described_at: float = 0.0
    look_signal: int = 0

    @property
    def socket(self) -> Path:
        """The socket of torch's server, once torch is imported."""
        return self.folder / f"{self.pid}.sock"

    @property
    def stacks(self) -> Path:
        """The file that faulthandler writes to, also for forked children."""
        return self.folder / f"{self.pid}.stacks"


def find_hooked(folder: Path) -> list[HookedProcess]:
    """Return the processes that described themselves, including those that have exited."""
    found, paths = [], list[Path]()
    with suppress(FileNotFoundError):  # the launch has ended
        paths = sorted(folder.glob("*.json"))
    for path in paths:
        try:
            document = json.loads(path.read_bytes())
            found.append(
                HookedProcess(
                    folder,
                    int(path.stem),
                    _number(document["rank"]),
                    _number(document["local_rank"]),
                    _number(document["main_thread"]),
                    int(document["signal"]),
                    int(document["descriptor"]),
                    bool(document.get("finished")),
                    path.stat().st_mtime,
                    int(document["look_signal"]),
                )
            )
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def find_unhooked(folder: Path, root: int) -> list[HookedProcess]:
    """Return the descendants that have a rank in their environment; only /proc knows these."""
    found = []
    for pid in processes.children(root):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        named = dict(variable.partition("=")[::2] for variable in variables)
        rank, local_rank = named.get("RANK", ""), named.get("LOCAL_RANK", "")
        if rank.isdecimal() and local_rank.isdecimal():
            found.append(HookedProcess(folder, pid, int(rank), int(local_rank), None, 0, -1))
    return found


def ask_torch(hooked: HookedProcess, question: str, limit_s: float) -> bytes:
    """Query torch's server in a process. Raises NoAnswerError."""
    if not hooked.socket.exists():
        raise NoAnswerError("no torch server: torch.distributed is not imported, or too old for one")
    from http.client import OK, HTTPException

    from platform_launch.observe.unix_http import UnixConnection

    connection = UnixConnection(hooked.socket, limit_s)
    try:
        connection.request("POST", f"/handler/{question}")
        response = connection.getresponse()
        data = response.read(_MOST_BYTES)
    except TimeoutError as error:
        raise NoAnswerError(f"torch did not answer {question} within {limit_s:g} s") from error
    except (OSError, HTTPException) as error:
        raise NoAnswerError(f"torch cannot be asked for {question}: {error}") from error
    finally:
        connection.close()
    if response.status != OK:
        raise NoAnswerError(f"torch has no {question}: {data[:80].decode(errors='replace')}")
    return data


def ask_collectives(hooked: HookedProcess, limit_s: float) -> RankTrace:
    """Return a rank's collectives.

    Both recorders are queried, because a job may use NCCL for its GPUs and gloo as well. Raises
    NoAnswerError.
    """
    answers, problem = [], NoAnswerError("it has no flight recorder")
    for question in ("dump_nccl_trace_json?onlyactive=true", "fr_trace_json"):
        try:
            answers.append(parse_dump(ask_torch(hooked, question, limit_s), hooked.rank or 0))
        except NoAnswerError as error:
            problem = error
        except InputError as error:
            problem = NoAnswerError(f"torch's answer to {question} cannot be read: {error}")
    if not answers:
        raise problem
    # Each recorder counts its own groups: those of the second keep their names if they differ.
    groups = {name: status for trace in reversed(answers) for name, status in trace.groups.items()}
    pending = tuple(collective for trace in answers for collective in trace.pending)
    earliest_s = min((trace.earliest_s for trace in answers if trace.earliest_s), default=0.0)
    latest_s = max(trace.latest_s for trace in answers)
    return RankTrace(hooked.rank or 0, groups, pending, earliest_s, latest_s)


def ask_operations(
    hooked: HookedProcess, limit_s: float, since_s: float
) -> dict[str, list[tuple[int, str, float, float]]]:
    """Return the collectives that a rank enqueued since, by group, see ``operations_since``.

    Raises NoAnswerError.
    """
    found: dict[str, list[tuple[int, str, float, float]]] = {}
    problem: NoAnswerError | None = NoAnswerError("it has no flight recorder")
    for question in ("fr_trace_json", "dump_nccl_trace_json?onlyactive=false"):
        try:
            operations = operations_since(ask_torch(hooked, question, limit_s), since_s)
        except NoAnswerError as error:
            problem = problem and error
        except InputError as error:
            problem = problem and NoAnswerError(f"torch's answer to {question} cannot be read: {error}")
        else:
            problem = None
            # A job may use NCCL for its GPUs and gloo as well; each recorder counts separately.
            found |= {f"{group}/{question[:4]}": some for group, some in operations.items()}
    if problem is not None:
        raise problem
    return found


def ask_faulthandler(hooked: HookedProcess, pid: int, limit_s: float) -> str:
    """Return the stacks of a process, or of its forked child, by its signal. Raises NoAnswerError.

    The signal is sent only to processes that certainly have faulthandler's handler; it would kill others.
    """
    if not hooked.signal or not catches(pid, hooked.signal):
        raise NoAnswerError("it has no handler for the signal that asks for stacks")
    if not processes.holds_open(pid, hooked.descriptor, hooked.stacks):
        raise NoAnswerError("its handler for stacks writes elsewhere")
    try:
        with hooked.stacks.open("rb") as file:
            begin = file.seek(0, os.SEEK_END)
            os.kill(pid, hooked.signal)
            return _what_comes(file.fileno(), begin, limit_s)
    except OSError as error:
        raise NoAnswerError(f"its stacks cannot be asked for: {error.strerror}") from error


def remove_torchruns_folders(folder: Path) -> None:
    """Remove the empty folders that torchrun made for its workers and left; folders with files are kept.

    The folder of a torchrun that started this launcher is in use.
    """
    outer = Environment.of_this_process().get("TORCHELASTIC_ERROR_FILE") or ""
    for link in folder.glob("*.torchrun"):
        with suppress(OSError):
            if Path(outer).is_relative_to(link.readlink()):
                continue
            for made, _, _ in os.walk(link.readlink(), topdown=False):
                Path(made).rmdir()


def _what_comes(descriptor: int, begin: int, limit_s: float) -> str:
    """Read what is appended to a file until nothing more is written."""
    deadline, length = time.monotonic() + limit_s, 0
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = os.fstat(descriptor).st_size - begin
        if now and now == length:
            break
        length = now
    if not length:
        raise NoAnswerError(f"it did not write its stacks within {limit_s:g} s")
    return os.pread(descriptor, min(length, _MOST_BYTES), begin).decode(errors="replace")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
