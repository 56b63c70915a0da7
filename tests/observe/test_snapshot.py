"""Snapshots of real processes, and a monitor over them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from threading import enumerate as enumerate_threads

import pytest

from platform_launch.observe import HOOK, node_probe, processes
from platform_launch.observe.hang import FindingKind, HangFinding
from platform_launch.observe.monitor import HangMonitor, HangReport, Replies
from platform_launch.observe.node_probe import NodeProbe
from platform_launch.observe.snapshot import NodeSnapshot
from platform_launch.observe.work import evidence
from platform_launch.observe.workers import HookedProcess, NoAnswerError, ask_faulthandler, find_hooked
from platform_launch.process_stat import catches, read_stat
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S, until

Start = Callable[..., subprocess.Popen[str]]
SLEEP = "import time\ndef rests():\n    time.sleep(600)\nprint('ready', flush=True)\nrests()"
# Computes for half of the time in which it is free to.
HALF = """
import time
print("ready", flush=True)
while True:
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    time.sleep(0.01)
"""
LOOP = "def turns():\n    while True:\n        pass\nprint('ready', flush=True)\nturns()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "observe"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start ranks that print a line when they are ready; they are killed in the end."""
    running: list[subprocess.Popen[str]] = []

    def start_rank(code: str, rank: int, *, hooked: bool = True) -> subprocess.Popen[str]:
        known = {"PLATFORM_LAUNCH_OBSERVE": str(folder), "PYTHONPATH": str(HOOK)} if hooked else {}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start_rank
    for process in running:
        with suppress(ProcessLookupError):  # with the children of a rank, which would go on for ever
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_stack_of_a_rank_is_read(folder: Path, start: Start) -> None:
    start(SLEEP, 0)
    probe = NodeProbe(folder, 3, "gn7")
    deadline = time.monotonic() + LIMIT_S
    while (main := (rank := probe.snapshot().ranks[0]).main) is None or main.frames[0].function != "rests":
        assert time.monotonic() < deadline
    assert (rank.rank, rank.stacks_from, rank.gil_held) == (0, "python", False)
    assert rank.trace is None
    assert any("no torch server" in problem for problem in rank.problems)


def test_stopped_rank_is_detected_by_its_kernel_state(folder: Path, start: Start) -> None:
    process = start(SLEEP, 0)
    process.send_signal(signal.SIGSTOP)
    probe = NodeProbe(folder, 0, "host")
    deadline = time.monotonic() + LIMIT_S
    while not (rank := probe.snapshot().ranks[0]).state.stopped:
        assert time.monotonic() < deadline
    assert rank.threads == ()


def test_ended_rank_stays_in_the_snapshot(folder: Path, start: Start) -> None:
    process = start("print('ready', flush=True)", 0)
    process.wait()
    assert [rank.state.ended for rank in NodeProbe(folder, 0, "host").snapshot().ranks] == [True]


def test_rank_without_the_hook_is_found_by_its_environment(folder: Path, start: Start) -> None:
    process = start(SLEEP, 5, hooked=False)
    (rank,) = NodeProbe(folder, 0, "host", root=os.getpid()).snapshot().ranks
    assert (rank.rank, rank.state.pid) == (5, process.pid)
    assert rank.problems


MUTE = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMAX - 3})
for _ in range(6):
    if os.fork() == 0:
        time.sleep(600)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGRTMAX - 3})
print("ready", flush=True)
time.sleep(600)
"""


def test_silent_children_do_not_make_their_node_silent(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like workers that hang in the kernel, which have the handler and cannot run it."""
    process = start(MUTE, 0)
    asked: list[int] = []

    def ask(hooked: HookedProcess, pid: int, limit_s: float) -> str:
        asked.append(pid)
        return ask_faulthandler(hooked, pid, limit_s)

    monkeypatch.setattr(node_probe, "ask_faulthandler", ask)
    (rank,) = NodeProbe(folder, 0, "host").snapshot().ranks
    for child in rank.children:
        os.kill(child.state.pid, signal.SIGKILL)
    assert len(rank.children) == 6
    assert 1 <= len([pid for pid in asked if pid != process.pid]) <= 2


def test_process_without_a_handler_gets_no_signal(folder: Path, start: Start) -> None:
    """The default action of a real-time signal is death."""
    start(SLEEP, 0)
    bare = start(SLEEP, 1, hooked=False)
    (hooked,) = find_hooked(folder)
    with pytest.raises(NoAnswerError, match="no handler"):
        ask_faulthandler(hooked, bare.pid, 1.0)
    assert bare.poll() is None
    assert not catches(bare.pid, hooked.signal)


def test_process_that_closed_the_file_gets_no_signal(folder: Path, start: Start) -> None:
    """What faulthandler wrote would land in whatever has that number now."""
    process = start("import os, time\nos.closerange(3, 99)\nprint('ready', flush=True)\ntime.sleep(600)", 0)
    (hooked,) = find_hooked(folder)
    with pytest.raises(NoAnswerError, match="writes elsewhere"):
        ask_faulthandler(hooked, process.pid, 1.0)
    assert process.poll() is None


def test_invalid_files_in_the_folder_are_ignored(folder: Path) -> None:
    for name, text in (("1.json", "{"), ("2.json", "[]"), ("x.json", "{}"), ("3.json", '{"rank": "a"}')):
        (folder / name).write_text(text)
    assert find_hooked(folder) == []


class Heard:
    """A monitor of real ranks, and what it reported."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.reports: SimpleQueue[HangReport] = SimpleQueue()
        self.resumed: SimpleQueue[float] = SimpleQueue()
        self.failed: list[str] = []
        self.monitor = HangMonitor(
            NodeProbe(folder, 0, "host"),
            log,
            world_size=2,
            hang_after_s=3.0,
            leads=True,
            ask_others=lambda _still_s, _limit_s: Replies(),
            reported=self.reports.put,
            resumed=self.resumed.put,
            failed=self.failed.append,
        )


@pytest.fixture
def heard(folder: Path, tmp_path: Path) -> Iterator[Heard]:
    watching = Heard(folder, tmp_path / "train.log")
    yield watching
    watching.monitor.stop()
    assert watching.failed == []


def test_stopped_rank_and_its_continuation_are_reported(heard: Heard, start: Start, tmp_path: Path) -> None:
    start(SLEEP, 0)
    stopped = start(SLEEP, 1)
    stopped.send_signal(signal.SIGSTOP)
    heard.monitor.start()
    report = heard.reports.get(timeout=LIMIT_S)
    assert report.finding.suspect_ranks == (1,)
    assert report.finding.culprits[0].doing == "stopped"
    assert len(report.nodes[0].ranks) == 2
    stopped.send_signal(signal.SIGCONT)
    (tmp_path / "train.log").write_text("step 5\n")
    assert heard.resumed.get(timeout=LIMIT_S) >= 3.0


def test_report_of_the_next_hang_implies_that_the_job_continued(heard: Heard) -> None:
    """A node whose rank did not answer in between learns it from node 0, however long each hang took."""
    finding = HangFinding(FindingKind.HANG, (), (), (), ())
    for hang, still_s in ((0, 4.0), (0, 8.0), (1, 9.0), (1, 18.0)):
        heard.monitor.record_finding(HangReport(still_s, finding, hang=hang))
    assert heard.resumed.get_nowait() == 8.0
    assert heard.resumed.empty()


@takes_long
def test_rank_that_loops_is_busy_and_its_function_is_reported(heard: Heard, start: Start) -> None:
    start(SLEEP, 0)
    start(LOOP, 1)
    heard.monitor.start()
    finding = heard.reports.get(timeout=LIMIT_S).finding
    assert (finding.kind, finding.suspect_ranks) == (FindingKind.BUSY, (1,))
    assert finding.culprits[0].doing == "loop"


@pytest.mark.parametrize(("ended", "told"), [(False, ["OSError: gone"]), (True, [])])
def test_failed_examination_is_reported_unless_the_job_has_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool, told: list[str]
) -> None:
    watching = Heard(folder, tmp_path / "train.log")

    def gone(*_: object, **__: object) -> None:
        if ended:
            watching.monitor.stop()
        raise OSError("gone")

    monkeypatch.setattr(NodeProbe, "sample", gone)
    watching.monitor.start()
    until(lambda: "hang-monitor" not in [thread.name for thread in enumerate_threads()], "the monitor's end")
    assert watching.failed == told


def test_long_examination_does_not_delay_heartbeats(
    heard: Heard, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if DataLoader workers hang in the kernel: each is waited for in vain."""
    start(SLEEP, 0)
    begun, over, take = Event(), Event(), NodeProbe.snapshot

    def slowly(probe: NodeProbe) -> NodeSnapshot:
        begun.set()
        over.wait(LIMIT_S)
        return take(probe)

    monkeypatch.setattr(NodeProbe, "snapshot", slowly)
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(heard.monitor.reply, 0.0)
        begun.wait(LIMIT_S)
        assert pool.submit(heard.monitor.still_s, 0.0).result(LIMIT_S) is not None
        over.set()
        assert looking.result(LIMIT_S).snapshot is not None


def test_new_output_is_progress(heard: Heard, start: Start, tmp_path: Path) -> None:
    for rank in range(2):
        start(SLEEP, rank)
    heard.monitor.start()
    with (tmp_path / "train.log").open("a") as log:
        for step in range(40):
            log.write(f"step {step}\n")
            log.flush()
            time.sleep(0.2)
    assert heard.reports.empty()


def test_launcher_lines_are_no_progress(heard: Heard, start: Start, tmp_path: Path) -> None:
    for rank in range(2):
        start(SLEEP, rank)
    heard.monitor.start()
    deadline = time.monotonic() + LIMIT_S
    with (tmp_path / "train.log").open("a") as log:
        for number in range(1000):
            if not heard.reports.empty() or time.monotonic() > deadline:
                break
            log.write(f"[node 0] 10:00:00 [WARN] number {number} [no-progress-detail]\n")
            log.flush()
            time.sleep(0.1)
    assert not heard.reports.empty()


def test_exit_code_of_a_rank_is_known_before_its_launcher_exits(folder: Path, start: Start) -> None:
    refused = start("import sys\nprint('ready', flush=True)\nsys.exit(2)", 0)
    start("print('ready', flush=True)", 1).wait()
    until(lambda: (stat := read_stat(Path("/proc", str(refused.pid)))) is not None and stat.ended)
    assert NodeProbe(folder, 0, "host").left((), {}) == [1]


def test_rank_that_exited_with_an_error_did_not_finish(folder: Path, start: Start) -> None:
    for rank in (0, 1):
        start("import sys\nprint('ready', flush=True)\nsys.exit(3)", rank).wait()
    probe = NodeProbe(folder, 0, "host")
    assert probe.left((), {}) == [0, 1]
    assert probe.left((), {}, failed_here=True) == []
    start(SLEEP, 2)
    assert probe.left((1,), {}, failed_here=True) == [0]


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel counts no waiting for a processor"
)
def test_computing_is_distinguished_from_sleeping_on_a_busy_core(folder: Path, start: Start) -> None:
    computes, sleeps = start(HALF, 0), start(SLEEP, 1)
    crowd = [start(LOOP, 2, hooked=False) for _ in range(6)]
    core = {min(os.sched_getaffinity(0))}
    for process in (computes, sleeps, *crowd):
        os.sched_setaffinity(process.pid, core)
    probe = NodeProbe(folder, 0, "host", work_window_s=0.1)
    with probe.asking():
        begin = probe.sample(stacks=False)[0].main_cpu_s
    until(lambda: processes.read_process(computes.pid).main_cpu_s - begin >= 0.1, lambda: "")
    ranks = probe.snapshot().ranks
    works = {rank.rank: evidence(rank.work, (), waits_in_place=False) for rank in ranks}
    assert works == {0: "main", 1: ""}, [rank.work for rank in ranks]


def parent_of(code: str) -> str:
    """Return a program that starts another and waits for it."""
    return (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {code!r}], stdout=subprocess.DEVNULL)\n"
        "print('ready', flush=True)\nchild.wait()"
    )


RECEIVES = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
sender, receiver = socket.create_connection(server.getsockname()), server.accept()[0]
print("ready", flush=True)
while True:
    sender.sendall(bytes(50_000))
    rest = 50_000
    while rest:
        rest -= len(receiver.recv(rest))
    time.sleep(0.5)
"""


# Holds the interpreter's lock for ever; each other thread asks for it every five milliseconds.
HOLDS_LOCK = """
import ctypes, os, threading, time
for _ in range(40):
    threading.Thread(target=lambda: [time.sleep(1) for _ in range(600)], daemon=True).start()
print("ready", flush=True)
ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
"""
COMPUTES_IN_A_THREAD = f"import threading\nthreading.Thread(target=exec, args=({HALF!r},)).start()"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (parent_of(HALF), "child"),
        (parent_of(SLEEP), ""),
        (RECEIVES, "bytes"),
        (COMPUTES_IN_A_THREAD, "threads"),
        (HOLDS_LOCK, ""),
        (SLEEP, ""),
    ],
)
def test_work_of_children_threads_and_sockets_is_evidence(
    folder: Path, start: Start, code: str, shown: str
) -> None:
    start(code, 0)
    probe = NodeProbe(folder, 0, "host", work_window_s=2.0)
    seen: list[str] = []

    def settled() -> bool:
        """Look until two windows in a row agree: the imports at the start are work."""
        with probe.asking():
            pass
        time.sleep(2.0)
        (rank,) = probe.snapshot().ranks
        seen.append(evidence(rank.work, (), waits_in_place=False))
        return len(seen) > 1 and seen[-2:] == [shown, shown]

    until(settled, lambda: str(seen))


WAITS_FOR_A_LOCK = """
import fcntl, os, subprocess, sys
path = os.environ["LOCK"]
hold = f"import fcntl, time; f = open({path!r}, 'w'); fcntl.flock(f, 2)"
hold += "; print(1, flush=True); time.sleep(600)"
holder = subprocess.Popen([sys.executable, "-S", "-c", hold], stdout=subprocess.PIPE, text=True)
holder.stdout.readline()
print(holder.pid, flush=True)
fcntl.flock(open(path, "w"), fcntl.LOCK_EX)
"""
WAITS_FOR_AN_ANSWER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print(server.getsockname()[1], flush=True)
client.recv(1)
"""
FILLS_A_PIPE = "import os\nends = os.pipe()\nprint('ready', flush=True)\nos.write(ends[1], bytes(300_000))"


def waits(pid: int) -> processes.ProcessState:
    """Return the state of a process once it waits in a call that has a file."""
    until(lambda: bool(processes.read_process(pid).waits_for), "its call")
    return processes.read_process(pid)


def test_file_of_a_lock_and_its_holder_are_known(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCK", str(tmp_path / "cache.lock"))
    process = start(WAITS_FOR_A_LOCK, 0)
    until(lambda: processes.read_process(process.pid).call == "lock", "the lock")
    state = processes.read_process(process.pid)
    (holder,) = processes.children(process.pid)
    assert (state.waits_for, state.lock_owner) == (str(tmp_path / "cache.lock"), holder)
    os.kill(holder, signal.SIGKILL)


def test_peer_of_a_socket_is_known(start: Start) -> None:
    state = waits(start(WAITS_FOR_AN_ANSWER, 0).pid)
    assert state.call == "read"
    assert state.waits_for.startswith("127.0.0.1:")


def test_writer_to_a_full_pipe_is_known(start: Start) -> None:
    state = waits(start(FILLS_A_PIPE, 0).pid)
    assert (state.call, state.waits_for[:5]) == ("write", "pipe:")
