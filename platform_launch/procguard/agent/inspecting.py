"""Reports what the ranks of this node are doing: their stacks and collectives, when the server asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

from platform_launch.hardware import running
from platform_launch.observe import FOLDER_VARIABLE, HOOK, processes
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.snapshot import shortened
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.connection import AgentConnection, RequestError
from platform_launch.procguard.agent.state import RunFolder, StateFolder
from platform_launch.procguard.api.wire import RanksSeen

_FOLDER = "observe"
# Between the two samples, to measure who uses the CPU.
_BETWEEN_S = 0.5


def hook_variables(run: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a rank inspectable. Raises OSError if it cannot have a folder.

    A node's launcher has no rank and makes its own ranks inspectable.
    """
    if "RANK" not in variables:
        return {}
    folder = run / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = variables.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{HOOK}:{path}" if path else str(HOOK), FOLDER_VARIABLE: str(folder)}


class Inspector:
    """Answers each question once, in its own thread: a stuck process answers late."""

    def __init__(
        self, connection: AgentConnection, state: StateFolder, log: Callable[[str, str], None]
    ) -> None:
        self._connection = connection
        self._state = state
        self._log = log
        self._answered: dict[int, str] = {}

    def answer_new(self, questions: Mapping[int, str]) -> None:
        """Start to answer new questions."""
        for number, question in questions.items():
            if self._answered.get(number) != question:
                self._answered[number] = question
                Thread(target=self._answer, args=(number, question), name="inspect", daemon=True).start()

    def _answer(self, number: int, question: str) -> None:
        try:
            seen = inspect_run(self._state.runs(number)[-1], number, question)
            self._connection.send_ranks(seen)
        except RequestError:  # the next heartbeat's answer repeats the question
            self._answered.pop(number, None)
        except (OSError, IndexError) as error:  # the run is gone, or the disk fails
            self._log("WARN", f"worker {number}: its ranks cannot be inspected: {error}")


def inspect_run(run: RunFolder, number: int, question: str) -> RanksSeen:
    """Return what the ranks of a run are doing. Raises OSError."""
    supervisor = int(run.supervisor().get("pid", 0))
    pids = processes.children(supervisor) if supervisor else []
    # The ranks of a launcher in the run have their own folder: the innermost.
    folders = [found for pid in pids if (found := running.variable(pid, FOLDER_VARIABLE))]
    probe = NodeProbe(
        Path(folders[-1]) if folders else run.path / _FOLDER, 0, "", root=supervisor, work_window_s=_BETWEEN_S
    )
    with probe.asking():
        probe.sample(stacks=True)
        moved_at = [trace.latest_s for trace in probe.collectives().values() if trace.latest_s]
    with suppress(OSError):
        moved_at.append((run.path / records.LOG).stat().st_mtime)
    time.sleep(_BETWEEN_S)
    ranks = shortened(probe.snapshot()).ranks
    sizes = (running.variable(rank.state.pid, "WORLD_SIZE") or "" for rank in ranks)
    return RanksSeen(
        number=number,
        question=question,
        ranks=ranks,
        world_size=next((int(size) for size in sizes if size.isdecimal() and len(size) < 10), 0),
        moved_s_ago=max(0.0, time.time() - max(moved_at)) if moved_at else None,
    )
