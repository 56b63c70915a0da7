"""The agent's folder: its identity, its credential and its workers' runs."""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from platform_launch.errors import InputError, UsageError
from platform_launch.files import private_folder
from platform_launch.hardware import running
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.reconcile import Stage, WorkerRun
from platform_launch.procguard.agent.records import AgentLock
from platform_launch.sentences import Sentence, sentence
from platform_launch.text import Phrase
from platform_launch.why.answer.verdict import Verdict

_KEPT_RUNS = 5
# Between recording a start and the supervisor's first record; a loaded machine is slow.
_SUPERVISOR_S = 60.0
_VERDICT_CHARACTERS = 8_000
_VERDICT = TypeAdapter(Verdict)


class RunFolder:
    """The records of one generation of one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = int(path.name)

    @property
    def number(self) -> int:
        """The worker's number."""
        return int(self.path.parent.name)

    def read_run(self, boot: str) -> WorkerRun:
        """Return how far the run has come. ``boot`` is the current boot id. Raises OSError."""
        agent = records.read(self.path / records.AGENT)
        # An invalid record was valid once: the run may have started.
        starting = {} if agent == {} else (agent or {}).get("starting")
        if starting is None:
            ready = (agent or {}).get("ready") == boot
            return WorkerRun(self.generation, Stage.READY if ready else Stage.STALE)
        supervisor = self.supervisor()
        if "ended" not in supervisor and supervisor and not is_alive(supervisor):
            supervisor = self.supervisor()  # the end may have been written between the two reads
        if "ended" in supervisor:
            return self._ended(supervisor, boot)
        if not supervisor:
            return self._without_supervisor(agent or {}, starting, boot)
        if not is_alive(supervisor):
            return self._lost(records.reason_of(supervisor, "void") or sentence("lost-supervisor"))
        exited = supervisor.get("exited", {})
        return WorkerRun(
            self.generation,
            Stage.RUNNING,
            ending=bool(supervisor.get("ending") or exited or (agent or {}).get("stop")),
            pid=_whole(supervisor.get("training")),
            exit_code=_whole(exited.get("exit_code")),
            ended_s_ago=_ago(exited, boot),
            reason=records.reason_of(supervisor, "ending"),
            log_bytes=self.log_bytes(),
        )

    def log_bytes(self) -> int:
        """Return the size of the output so far."""
        try:
            return (self.path / records.LOG).stat().st_size
        except OSError:
            return 0

    def give_up(self, reason: Sentence) -> bool:
        """Record that no supervisor may start this run any more; False if one already has. Raises OSError."""
        return records.claim(self.path / records.SUPERVISOR, {"void": reason.document()})

    def supervisor(self) -> dict[str, Any]:
        """Return the supervisor's record, empty if there is none. Raises OSError."""
        return records.read(self.path / records.SUPERVISOR) or {}

    def _without_supervisor(
        self, agent: dict[str, object], starting: dict[str, object], boot: str
    ) -> WorkerRun:
        age_s = _ago(starting, boot)
        if starting.get("boot") == boot and age_s is not None and age_s < _SUPERVISOR_S:
            return WorkerRun(self.generation, Stage.STARTING, ending=bool(agent.get("stop")))
        never = sentence("lost-never-started")
        with suppress(OSError):
            if self.give_up(never):
                return self._lost(never)
        # Either a supervisor started it after all, or the disk cannot be written: lost unless there is one.
        return self.read_run(boot) if self.supervisor() else self._lost(never)

    def _ended(self, supervisor: dict[str, Any], boot: str) -> WorkerRun:
        ended, why = supervisor["ended"], None
        code = _whole(ended.get("exit_code"))
        with suppress(ValidationError):
            why = _VERDICT.validate_python(supervisor["why"]) if "why" in supervisor else None
        return WorkerRun(
            self.generation,
            Stage.LOST if code is None else Stage.EXITED,
            exit_code=code,
            ended_s_ago=_ago(supervisor.get("exited") or ended, boot),
            stop_requested=bool(ended.get("stop_requested")),
            reason=records.reason_of(ended),
            verdict=str(supervisor.get("verdict", ""))[:_VERDICT_CHARACTERS],
            why=why,
            cause_line=_whole(supervisor.get("line")),
            log_bytes=self.log_bytes(),
        )

    def _lost(self, reason: Sentence) -> WorkerRun:
        return WorkerRun(self.generation, Stage.LOST, reason=reason, log_bytes=self.log_bytes())


class StateFolder:
    """The folder of one agent on one node, private because it holds a credential."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "agent.lock"
        self._about = path / "agent.json"
        self._lock = AgentLock(self.lock)

    def open(self) -> None:
        """Create the folder and lock it. Raises InputError, UsageError."""
        try:
            private_folder(self.path, "it will contain a credential", "choose another --state")
            taken = self._lock.acquire()
        except OSError as error:
            raise InputError(
                Phrase(
                    "the agent's state folder {folder}: {problem}", folder=self.path, problem=error.strerror
                ),
                "choose another --state",
            ) from error
        if not taken:
            raise UsageError(
                Phrase("another agent uses {folder}", folder=self.path),
                "one agent per node is enough: raise its --workers; for a second one, choose another --state",
            )

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def instance(self) -> str:
        """Return the id of this installation, created once. Raises OSError."""
        name = (records.read(self._about) or {}).get("instance")
        if not isinstance(name, str) or not 8 <= len(name) <= 64:
            name = secrets.token_hex(8)
            records.write(self._about, {"instance": name})
        return name

    def credential(self, server: str, joined_as: str | None = None) -> str | None:
        """Return the last credential from this server, None if there is none.

        With ``joined_as``, only the one given for that join request.
        """
        found: dict[str, object] = {}
        with suppress(OSError):
            found = records.read(self._about) or {}
        credential = found.get("credential")
        known = found.get("server") == server and joined_as in (None, found.get("joined_as"))
        return credential if known and isinstance(credential, str) else None

    def save_credential(self, server: str, joined_as: str, credential: str) -> None:
        """Save the credential, replacing any other. Raises OSError."""
        records.update(self._about, server=server, joined_as=joined_as, credential=credential)

    def numbers(self) -> list[int]:
        """Return the numbers of all workers that ever ran something here."""
        with suppress(OSError):
            names = (entry.name for entry in (self.path / "runs").iterdir())
            return sorted(int(name) for name in names if name.isascii() and name.isdigit())
        return []

    def runs(self, number: int) -> list[RunFolder]:
        """Return a worker's runs, oldest first. Raises OSError."""
        with suppress(FileNotFoundError):
            names = (entry.name for entry in (self.path / "runs" / str(number)).iterdir())
            found = (name for name in names if name.isascii() and name.isdigit())
            return [RunFolder(self._of(number, name)) for name in sorted(map(int, found))]
        return []

    def make_run(self, number: int, generation: int) -> RunFolder:
        """Create the folder of a run, and remove the oldest ones. Raises OSError."""
        path = self._of(number, generation)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in self.runs(number)[:-_KEPT_RUNS]:
            shutil.rmtree(old.path, ignore_errors=True)
        return RunFolder(path)

    def _of(self, number: int, generation: int) -> Path:
        return self.path / "runs" / str(number) / str(generation)


def is_alive(supervisor: dict[str, object]) -> bool:
    """Return whether the process that wrote a supervisor's record is still running."""
    pid, started = supervisor.get("pid"), supervisor.get("started", 0)
    return isinstance(pid, int) and running.find(pid, started=started) is not None


def _ago(record: dict[str, object], boot: str) -> float | None:
    """Return how long ago a record was written; after a reboot, at least that. None without a time."""
    at = record.get("at")
    if not isinstance(at, float):
        return None
    now = records.clock_s()
    return max(0.0, now - at) if record.get("boot") == boot else now


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
