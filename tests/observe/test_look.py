"""Looking into running processes: pdb and torch's profiler by the hook, and nothing left behind."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.launch.peers import LinkPeers
from platform_launch.launch.profiling import Profiling
from platform_launch.launch.training_command import HangOptions
from platform_launch.observe import processes
from platform_launch.observe.look import connected, profile_here, trace_file
from platform_launch.observe.merged_trace import TracePart, merge
from platform_launch.observe.monitor import NodeReply
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.workers import HookedProcess, NoAnswerError, find_hooked
from platform_launch.rendezvous.run.texts import (
    AnswersReceived,
    RequestReceived,
    SendAnswer,
    SendRequest,
    TextCommand,
)
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S, until
from tests.observe.test_hook import environment

LOOK_SIGNAL = int(signal.SIGRTMAX) - 4
Start = Callable[..., subprocess.Popen[str]]

LOOP = """
import select, sys, time
def step(n):
    time.sleep(0.01)
def main():
    n = 0
    print("ready", flush=True)
    while not stop():
        step(n)
        n += 1
    print("traced" if sys.gettrace() or sys._getframe().f_trace else "free", flush=True)
def stop():
    return bool(select.select([sys.stdin], [], [], 0)[0])
main()
"""
# What the hook touches of torch's profiler: such a rank starts in a fraction of the time.
STAND_IN = {
    "torch/__init__.py": "",
    "torch/autograd/__init__.py": "",
    "torch/autograd/profiler.py": """
_is_profiler_enabled = False
class profile:
    def _prepare_trace(self):
        pass
""",
    "torch/profiler.py": """
import json
from torch.autograd import profiler
class profile:
    def start(self):
        self.inner = profiler.profile()
        self.inner._prepare_trace()
        assert not profiler._is_profiler_enabled
        profiler._is_profiler_enabled = True
    def stop(self):
        profiler._is_profiler_enabled = False
    def export_chrome_trace(self, path):
        with open(path, "w") as file:
            json.dump({"traceEvents": [{"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": 1.0}]}, file)
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "observe"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Start]:
    """Start code as a rank; with ``torch`` it finds the stand-in."""
    running: list[subprocess.Popen[str]] = []
    for name, text in STAND_IN.items():
        (tmp_path / "stand-in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stand-in" / name).write_text(text)

    def begin(code: str, *, rank: int = 3, stand_in: bool = True) -> subprocess.Popen[str]:
        path = [tmp_path / "stand-in"] if stand_in else []
        (script := tmp_path / f"rank{rank}.py").write_text(code)
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env=environment(folder, *path, RANK=str(rank)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def hooked(folder: Path, process: subprocess.Popen[str]) -> HookedProcess:
    return next(one for one in find_hooked(folder) if one.pid == process.pid)


def end(process: subprocess.Popen[str]) -> str:
    return process.communicate("end\n", timeout=LIMIT_S)[0]


def typed(connection: socket.socket, *lines: str) -> str:
    """Type lines, and return all that the debugger prints until it closes."""
    connection.sendall("".join(f"{line}\n" for line in lines).encode())
    connection.settimeout(LIMIT_S)
    return "".join(iter(lambda: connection.recv(65536).decode(), ""))


def debugged(folder: Path, process: subprocess.Popen[str], *lines: str) -> str:
    with connected(hooked(folder, process), {"do": "debug"}, LIMIT_S) as connection:
        return typed(connection, *lines)


def test_debugger_shows_a_rank_and_lets_it_go_on_untraced(folder: Path, start: Start) -> None:
    process = start(LOOP)
    said = debugged(folder, process, "b step", "c", "p n * 0 + 42", "up", "p 'n' in locals()", "next", "q")
    assert "-> time.sleep(0.01)" in said
    assert "(rank 3) 42" in said
    assert "(rank 3) True" in said
    assert "-> " in debugged(folder, process, "where", "continue"), "it can be looked at again"
    assert end(process) == "free\n"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"]


def test_rank_that_waits_for_a_lock_can_be_looked_at(folder: Path, start: Start) -> None:
    process = start(
        "import threading\nprint('ready', flush=True)\nlock = threading.Lock()\nwith lock: lock.acquire()"
    )
    until(lambda: processes.read_process(process.pid).wchan.startswith("futex"))
    said = debugged(folder, process, "p lock.locked()", "!lock.release()", "c")
    assert "True" in said
    assert process.wait(LIMIT_S) == 0


def test_rank_goes_on_if_its_user_is_gone(folder: Path, start: Start) -> None:
    process = start(LOOP)
    with connected(hooked(folder, process), {"do": "debug"}, LIMIT_S) as connection:
        connection.sendall(b"b nowhere\ntbreak main\nc\n")
    assert end(process) == "free\n"


def test_script_that_uses_the_signal_keeps_it(folder: Path, start: Start) -> None:
    process = start(
        f"import signal, sys\nsignal.signal({LOOK_SIGNAL}, lambda *_: print('mine'))\n"
        "print('ready', flush=True)\nsys.stdin.readline()"
    )
    with (
        pytest.raises(NoAnswerError, match="a script of its own uses it"),
        connected(hooked(folder, process), {"do": "debug"}, 5.0),
    ):
        pass
    os.kill(process.pid, LOOK_SIGNAL)
    assert end(process) == "mine\n"


def test_rank_that_executes_no_python_is_reported_and_later_left_alone(folder: Path, start: Start) -> None:
    process = start(
        "import ctypes, os, sys\nprint('ready', flush=True)\n"
        "lib = ctypes.CDLL(None)\nbuffer = ctypes.create_string_buffer(9)\n"
        "while lib.read(0, buffer, 1) < 1: pass\nprint('on', flush=True)"
    )
    os.kill(process.pid, signal.SIGSTOP)
    with (
        pytest.raises(NoAnswerError, match="has executed no Python"),
        connected(hooked(folder, process), {"do": "debug"}, 0.2),
    ):
        pass
    os.kill(process.pid, signal.SIGCONT)
    assert end(process) == "on\n"


def test_profile_of_a_rank_without_torch_or_whose_script_profiles_is_refused(
    folder: Path, start: Start
) -> None:
    plain = start(LOOP, rank=0)
    profiles = start(
        "from torch.autograd import profiler\nprofiler._is_profiler_enabled = True\n" + LOOP, rank=1
    )
    ended = start("print('ready', flush=True)\nimport torch, time\ntime.sleep(0.5)", rank=2)
    found = profile_here([hooked(folder, one) for one in (plain, profiles, ended)], 60.0)
    assert [one.problem for one in found] == [
        "torch is not imported",
        "the script uses torch's profiler itself",
        "",
    ], "a rank that ends meanwhile leaves what it has recorded"
    assert [trace_file(folder, one.pid).exists() for one in found] == [False, False, True]


def test_script_that_starts_its_profiler_meanwhile_gets_it(folder: Path, start: Start) -> None:
    code = "import torch.profiler\nimport sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    process = start(
        code + "torch.profiler.profile().start()\nprint('mine', flush=True)\nsys.stdin.readline()"
    )
    assert process.stdin is not None

    def profile(connection: socket.socket) -> str:
        assert json.loads(connection.recv(4096)) == {"started": True}
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return "".join(iter(lambda: connection.recv(4096).decode(), ""))

    with connected(hooked(folder, process), {"do": "profile", "seconds": 600}, LIMIT_S) as connection:
        assert json.loads(profile(connection)) == {"done": True}
    assert end(process) == "mine\n"


@takes_long
def test_real_torch_is_profiled_twice(folder: Path, start: Start) -> None:
    process = start(
        "import torch\nmade = torch.ones(4)\n"
        + LOOP.replace("time.sleep(0.01)", "time.sleep(0.01), made + n"),
        stand_in=False,
    )
    one = hooked(folder, process)
    for _ in range(2):
        (found,) = profile_here([one], 0.2)
        assert found.problem == ""
        merged = folder / "merged.json.gz"
        assert merge([TracePart(3, 1, "gn7", trace_file(folder, one.pid))], merged) > 10
        events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
        assert {event["name"] for event in events} >= {"aten::add", "process_name"}
        assert {event["pid"] for event in events} <= set(range(3000, 3010))
    trace_file(folder, one.pid).unlink()
    merged.unlink()
    assert "free" in end(process)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"]


class TwoNodes:
    """Two nodes of a job, joined as the rendezvous would join them; node 1's clock is 2 s ahead."""

    def __init__(self, folders: list[Path]) -> None:
        self.nodes: list[Profiling] = []
        self.peers = [
            LinkPeers(send, lambda _s: NodeReply(0.0), lambda _report: None, also)
            for send, also in (
                (self._from_asking, lambda _message: None),
                (self._from_other, lambda message: self.nodes[1].receive(message)),
            )
        ]
        self.nodes = [
            Profiling(NodeProbe(folder, node, f"gn{node}", root=2**30), options, self.peers[node])
            for node, folder in enumerate(folders)
            for options in [HangOptions(folder, node, 2, f"gn{node}", folder / "log")]
        ]

    def _from_asking(self, message: TextCommand) -> None:
        assert isinstance(message, SendRequest)
        self.number = message.number
        self.peers[1].receive(RequestReceived("0-1", message.body, (2.0, 0.001)))

    def _from_other(self, message: TextCommand) -> None:
        assert isinstance(message, SendAnswer)
        self.peers[0].receive(AnswersReceived(self.number, {1: message.body}, {2: "gn2"}))


def test_traces_of_all_nodes_come_to_the_one_that_asks(
    folder: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform_launch.launch.profiling._PART_BYTES", 50)
    process = start("import torch\n" + LOOP, rank=1)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    found = TwoNodes([own, folder]).nodes[0].run(0.1, ())
    assert [(one.get("rank"), one["node_rank"], one["host"], one["problem"]) for one in found] == [
        (1, 1, "gn1", ""),
        (None, 2, "gn2", "it does not answer"),
    ]
    assert found[0]["offset_s"] == 2.0
    assert json.loads(gzip.decompress(Path(str(found[0]["path"])).read_bytes()))["traceEvents"]
    assert not trace_file(folder, process.pid).exists(), "nothing is left behind"


def part(tmp_path: Path, rank: int, offset_s: float, base_ns: int, *events: dict[str, object]) -> TracePart:
    path = tmp_path / f"{rank}.gz"
    path.write_bytes(
        gzip.compress(json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": events}).encode())
    )
    return TracePart(rank, rank, f"gn{rank}", path, offset_s)


def test_ranks_are_aligned_and_kept_apart_in_one_trace(tmp_path: Path) -> None:
    def work(at_us: float, pid: object = 77) -> dict[str, object]:
        return {"ph": "X", "name": "work", "pid": pid, "tid": 5, "ts": at_us, "dur": 3.0}

    named = {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "python"}}
    gpu = {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}}
    flow = {"ph": "s", "name": "launch", "id": 9, "pid": 77, "tid": 5, "ts": 1.0}
    parts = [
        part(tmp_path, 0, 0.0, 1_000_000, named, work(10.0), flow),
        part(tmp_path, 1, 2.0, 3_000_000, named, work(2_000_008.0), work(2_000_009.0, 0), gpu, flow),
    ]
    assert merge(parts, tmp_path / "merged.gz") == 11
    events = json.loads(gzip.decompress((tmp_path / "merged.gz").read_bytes()))["traceEvents"]
    works = [(event["pid"], event["ts"]) for event in events if event["name"] == "work"]
    assert works == [(0, 10.0), (1000, 2008.0), (1001, 2009.0)], "by node 0's clock"
    assert [event["id"] for event in events if event["ph"] == "s"] == ["0.9", "1.9"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 (node 0, gn0)", "rank 1 (node 1, gn1)", "rank 1, GPU 0 (node 1, gn1)"]


def test_trace_that_is_none_is_named(tmp_path: Path) -> None:
    whole = part(tmp_path, 1, 0.0, 0)
    for content in (b"", whole.path.read_bytes()[:-9], gzip.compress(b"[1]")):
        whole.path.write_bytes(content)
        with pytest.raises(InputError, match="the trace of rank 1"):
            merge([whole], tmp_path / "merged.gz")
