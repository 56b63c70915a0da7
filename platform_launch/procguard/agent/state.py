"""The agent's folder: who this agent is, and what its workers have run."""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from platform_launch.errors import InputError, UsageError
from platform_launch.files import private_folder
from platform_launch.hardware import running
from platform_launch.procguard.agent import records
from platform_launch.procguard.agent.launch import RunLaunch
from platform_launch.procguard.agent.lock import AgentLock
from platform_launch.procguard.agent.reconcile import Stage, WorkerRun
from platform_launch.procguard.api.wire import LONGEST_VERDICT
from platform_launch.sentences import Sentence, sentence
from platform_launch.why.answer.verdict import Verdict

_KEPT_RUNS = 5
# From writing down that a run starts to the first word of its supervisor; a loaded machine is slow.
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
        """Which worker's run it is."""
        return int(self.path.parent.name)

    def read_run(self, boot: str) -> WorkerRun:
        """Return how far the run has come. ``boot`` is this machine's present boot id. Raises OSError."""
        starting = self._read(records.STARTING)
        if starting is None:
            ready = self._read(records.READY) or {}
            return WorkerRun(self.generation, Stage.READY if ready.get("boot") == boot else Stage.STALE)
        ended = self._read(records.ENDED)
        if ended is not None:
            return self._ended(ended, boot)
        supervisor = self._read(records.SUPERVISOR)
        if supervisor is None:
            return self._without_supervisor(starting, boot)
        if supervisor.get("void") or not is_alive(supervisor):
            ended = self._read(records.ENDED)  # written between the two looks
            if ended is not None:
                return self._ended(ended, boot)
            return self._lost(records.reason_of(supervisor, "void") or sentence("lost-supervisor"))
        exited = self._read(records.EXITED) or {}
        ending = self._read(records.ENDING) or {}
        return WorkerRun(
            self.generation,
            Stage.RUNNING,
            ending=bool(ending or exited or self._read(records.STOP)),
            pid=_whole((self._read(records.TRAINING) or {}).get("pid")),
            exit_code=_whole(exited.get("exit_code")),
            ended_s_ago=_ago(exited, boot),
            reason=records.reason_of(ending),
            log_bytes=self.log_bytes(),
        )

    def log_bytes(self) -> int:
        """Return the size of the output so far."""
        try:
            return (self.path / records.LOG).stat().st_size
        except OSError:
            return 0

    def give_up(self, reason: Sentence) -> bool:
        """Settle that no supervisor will take this run any more; False when one has. Raises OSError."""
        return records.claim(self.path / records.SUPERVISOR, records.reason(reason, "void"))

    def supervisor(self) -> dict[str, object]:
        """Return the record of the supervisor. Raises OSError."""
        return self._read(records.SUPERVISOR) or {}

    def _without_supervisor(self, starting: dict[str, object], boot: str) -> WorkerRun:
        age_s = _ago(starting, boot)
        if starting.get("boot") == boot and age_s is not None and age_s < _SUPERVISOR_S:
            return WorkerRun(self.generation, Stage.STARTING, ending=bool(self._read(records.STOP)))
        never = sentence("lost-never-started")
        with suppress(OSError):
            if self.give_up(never):
                return self._lost(never)
        # A supervisor has taken it after all, or it cannot be written down: then it is lost while none has.
        return self._lost(never) if self._read(records.SUPERVISOR) is None else self.read_run(boot)

    def _ended(self, ended: dict[str, object], boot: str) -> WorkerRun:
        code = _whole(ended.get("exit_code"))
        verdict = ""
        with suppress(OSError):
            verdict = (self.path / records.VERDICT).read_text(encoding="utf-8", errors="replace")
        return WorkerRun(
            self.generation,
            Stage.LOST if code is None else Stage.EXITED,
            exit_code=code,
            ended_s_ago=_ago(self._read(records.EXITED) or ended, boot),
            stop_requested=bool(ended.get("stop_requested", ended.get("asked"))),
            reason=records.reason_of(ended),
            verdict=verdict[:_VERDICT_CHARACTERS],
            why=self._why() if verdict else None,
            cause_line=_whole((self._read(records.CAUSE) or {}).get("line")) if verdict else None,
            log_bytes=self.log_bytes(),
        )

    def _why(self) -> Verdict | None:
        with suppress(OSError, ValidationError):
            data = (self.path / records.VERDICT_VALUES).read_bytes()
            return _VERDICT.validate_json(data) if len(data) <= LONGEST_VERDICT else None
        return None

    def _lost(self, reason: Sentence) -> WorkerRun:
        return WorkerRun(self.generation, Stage.LOST, reason=reason, log_bytes=self.log_bytes())

    def _read(self, name: str) -> dict[str, object] | None:
        return records.read(self.path / name)


class StateFolder:
    """The folder of one agent on one node, for its owner alone: it holds a credential."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "agent.lock"
        self._lock = AgentLock(self.lock)

    def open(self) -> None:
        """Create the folder and be its only agent. Raises InputError, UsageError."""
        try:
            private_folder(self.path, "it will hold a credential", "name another --state")
            taken = self._lock.take()
            if taken:
                self._forget_environments()
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}: the agent keeps its memory there", "name another --state"
            ) from error
        if not taken:
            raise UsageError(
                f"another agent uses {self.path}",
                "one agent a node is enough: raise its --workers; for a second one name another --state",
            )

    def _forget_environments(self) -> None:
        """Remove what earlier versions left of runs that have started: the environments of trainings."""
        for number in self.numbers():
            for run in self.runs(number):
                if (run.path / records.SUPERVISOR).exists():
                    RunLaunch.forget(run.path)

    def close(self) -> None:
        """Let another agent use the folder."""
        self._lock.release()

    def instance(self) -> str:
        """Return the name of this installation; made once. Raises OSError."""
        path = self.path / "instance.json"
        name = (records.read(path) or {}).get("instance")
        if not isinstance(name, str) or not 8 <= len(name) <= 64:
            name = secrets.token_hex(8)
            records.write(path, {"instance": name})
        return name

    def credential(self, server: str, joined_as: str | None = None) -> str | None:
        """Return the credential that this server gave last, None where it gave none.

        With ``joined_as`` only the one that it gave for joining as this.
        """
        found: dict[str, object] = {}
        with suppress(OSError):
            found = records.read(self.path / "credential.json") or {}
        credential = found.get("credential")
        known = found.get("server") == server and joined_as in (None, found.get("joined_as"))
        return credential if known and isinstance(credential, str) else None

    def keep_credential(self, server: str, joined_as: str, credential: str) -> None:
        """Keep the credential; any other is forgotten. Raises OSError."""
        record = {"server": server, "joined_as": joined_as, "credential": credential}
        records.write(self.path / "credential.json", record)

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
    """Tell whether the process that wrote a supervisor's record still runs."""
    pid, started = supervisor.get("pid"), supervisor.get("started", 0)
    return isinstance(pid, int) and running.find(pid, started=started) is not None


def _ago(record: dict[str, object], boot: str) -> float | None:
    """Return how long ago a record was written; after a reboot, the least it can be. None without a time."""
    at = record.get("at")
    if not isinstance(at, float):
        return None
    now = records.clock_s()
    return max(0.0, now - at) if record.get("boot") == boot else now


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
