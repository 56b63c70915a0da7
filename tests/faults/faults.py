"""The faults, by name; what could not be played is said in docs/reference/faults.md."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.faults.fault import Fault, Owed
from tests.faults.launchers import PORT
from tests.faults.stage import Stage
from tests.lab.waiting import LIMIT_S

ENDS, STOPS, SURVIVES, REFUSED = Owed.ENDS, Owed.STOPS, Owed.SURVIVES, Owed.REFUSED
SHORT = ("none", "--steps", "60")  # a training that ends by itself, soon after the fault
NODE_0, NODE_1 = frozenset({0}), frozenset({1})


def _of_a_rank(name: str, what: str, owed: Owed = ENDS) -> Fault:
    script, starts = (name, "--rank", "3"), name != "before-init"
    return Fault(f"{name}-gloo", f"one of four ranks {what}", owed, script, node=1, nproc=2, starts=starts)


def _of_a_node(name: str, what: str, owed: Owed = ENDS, code: int | None = None) -> Fault:
    node = 1 if owed is ENDS else None
    script = (name,) if owed is ENDS else (name, "--steps", "60")
    return Fault(name, f"the only rank of node 1 {what}", owed, script, node=node, code=code)


def _signal(rank: int | None, number: signal.Signals) -> Callable[[Stage], None]:
    def send(stage: Stage) -> None:
        for one in range(len(stage.nodes)) if rank is None else (rank,):
            stage.signal(one, number)

    return send


def _signal_helper(rank: int, number: signal.Signals) -> Callable[[Stage], None]:
    def send(stage: Stage) -> None:
        pid = stage.helper(rank)
        os.kill(pid, number)
        if number is signal.SIGSTOP:
            stage.later(lambda: _quietly(pid, signal.SIGCONT))

    return send


def _stop_launcher(rank: int) -> Callable[[Stage], None]:
    def stop(stage: Stage) -> None:
        stage.signal(rank, signal.SIGSTOP)

    return stop


def _quietly(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _cut(rank: int, seconds: float | None) -> Callable[[Stage], None]:
    def cut(stage: Stage) -> None:
        machine = stage.machines[rank]
        machine.cut()
        stage.later(machine.heal)
        if seconds is not None:
            time.sleep(seconds)
            machine.heal()

    return cut


def _no_way(rank: int, towards: int, seconds: float | None = None) -> Callable[[Stage], None]:
    """Lose what one host sends to another; the way back stays."""

    def lose(stage: Stage) -> None:
        address = stage.machines[towards].address
        stage.ip(rank, f"route add blackhole {address}/32", f"route del blackhole {address}/32")
        if seconds is not None:
            time.sleep(seconds)
            stage.ip(rank, f"route del blackhole {address}/32")

    return lose


def _no_port(rank: int, port: int, seconds: float | None) -> Callable[[Stage], None]:
    """Lose what a host sends to one port of node 0."""

    def lose(stage: Stage) -> None:
        rule = f"to {stage.machines[0].address} ipproto tcp dport {port} blackhole"
        stage.ip(rank, f"rule add {rule} pref 1", f"rule del {rule} pref 1")
        if seconds is not None:
            time.sleep(seconds)
            stage.ip(rank, f"rule del {rule} pref 1")

    return lose


def _power_off(rank: int) -> Callable[[Stage], None]:
    return lambda stage: stage.power_off(rank)


def _many_terms(stage: Stage) -> None:
    for _ in range(300):
        stage.signal(1, signal.SIGTERM)


def _second_launcher(stage: Stage) -> None:
    """A stranger comes with node 1's rank and another script, as a second job on the same machine does."""
    stranger = stage.start(1, logs=stage.folder / "stranger")
    with suppress(subprocess.TimeoutExpired):
        stranger.process.wait(60)
    stranger.process.kill()


@contextmanager
def _listening(stage: Stage, rank: int, port: int) -> Iterator[socket.socket]:
    with stage.machines[rank].entered(), socket.create_server(("", port)) as server:
        yield server


def _take_port(port: int) -> Callable[[Stage], None]:
    def take(stage: Stage) -> None:
        holder = _listening(stage, 0, port)
        holder.__enter__()
        stage.later(lambda: holder.__exit__(None, None, None))

    return take


def _garbage(stage: Stage) -> None:
    for port in (PORT, PORT + 1):
        place = (stage.machines[0].address, port)
        with (
            suppress(OSError),
            stage.machines[1].entered(),
            socket.create_connection(place, timeout=LIMIT_S) as connection,
        ):
            connection.sendall(os.urandom(4096))


def _everywhere(name: str, value: str) -> Callable[[Stage], None]:
    def put(stage: Stage) -> None:
        for rank in range(stage.fault.nnodes):
            stage.variables.setdefault(rank, {})[name] = value

    return put


def _wrapped(*argv: str, rank: int = 1) -> Callable[[Stage], None]:
    def wrap(stage: Stage) -> None:
        stage.wrapped[rank] = argv

    return wrap


def _redirected(line: str) -> tuple[str, ...]:
    return ("sh", "-c", f'exec "$0" "$@" {line}')


def _limited(line: str) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit {line}; exec "$0" "$@"')


def _file_for_a_folder(stage: Stage) -> None:
    stage.logs(1).write_text("in the way of the log's folder")


def _small_disk(stage: Stage) -> None:
    folder = stage.logs(1)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    stage.later(lambda: subprocess.run(["umount", "--lazy", str(folder)], check=False))


def _stuck_reader(stage: Stage) -> None:
    reading, writing = os.pipe()
    stage.streams[1] = writing
    stage.later(lambda: os.close(reading))
    stage.later(lambda: os.close(writing))


def _reader_gone(stage: Stage) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stage.streams[1] = writing
    stage.later(lambda: os.close(writing))


def _more_arguments(*words: str | bytes) -> Callable[[Stage], None]:
    def add(stage: Stage) -> None:
        for rank in range(stage.fault.nnodes):
            stage.script_of[rank] = words

    return add


_DNS = """
import socket, sys, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
delay, address = float(sys.argv[1]), bytes(map(int, sys.argv[2].split(".")))
while True:
    question, asker = server.recvfrom(512)
    end = question.index(b"\\0", 12) + 5
    wanted = question[end - 4:end - 2] == b"\\0\\1" and b"node0" in question
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x05\\0\\4" + address if wanted else b""
    head = question[:2] + (b"\\x81\\x80" if b"node0" in question else b"\\x81\\x83")
    head += b"\\0\\1\\0" + bytes([bool(answer)]) + b"\\0\\0\\0\\0"
    threading.Timer(delay, server.sendto, (head + question[12:end] + answer, asker)).start()
"""


def _slow_names(delay_s: float) -> Callable[[Stage], None]:
    """Let node 1 learn node 0's address from a name server alone, which takes its time."""

    def prepare(stage: Stage) -> None:
        machine = stage.machines[1]
        (machine.etc / "hosts").write_text(f"127.0.0.1 localhost\n{machine.address} {machine.name}\n")
        server = machine.popen([sys.executable, "-c", _DNS, str(delay_s), stage.machines[0].address])
        stage.later(server.communicate)  # after the next line's: the last is done first
        stage.later(server.kill)
        whole = f"127.0.0.1 localhost\n{stage.machines[0].address} node0\n{machine.address} node1\n"
        stage.later(lambda: (machine.etc / "hosts").write_text(whole))

    return prepare


def _absent(rank: int) -> Callable[[Stage], None]:
    return lambda stage: stage.absent.add(rank)


def _late(rank: int, seconds: float) -> Callable[[Stage], None]:
    return _wrapped("sh", "-c", f'sleep {seconds}; exec "$0" "$@"', rank=rank)


def _other_name(stage: Stage) -> None:
    stage.master = "nowhere.invalid"


def _soon(number: signal.Signals, seconds: float) -> Callable[[Stage], None]:
    """Send a signal to all nodes so many seconds after their start."""

    def send(stage: Stage) -> None:
        time.sleep(seconds)
        for rank in range(len(stage.nodes)):
            stage.signal(rank, number)

    return send


def _on_the_last_word(stage: Stage) -> None:
    """Send SIGTERM the moment that the roll call is over and the training is about to start."""
    word = "roll-call-complete" if stage.launcher.own_options else "training on rank"
    done = threading.Event()

    def watch() -> None:
        with suppress(AssertionError):
            stage.nodes[1].when(word)
            stage.signal(1, signal.SIGTERM)
        done.set()

    threading.Thread(target=watch, daemon=True).start()
    done.wait(60)


def _pause(rank: int, seconds: float) -> Callable[[Stage], None]:
    def pause(stage: Stage) -> None:
        stage.signal(rank, signal.SIGSTOP)
        time.sleep(seconds)
        stage.signal(rank, signal.SIGCONT)

    return pause


def _home_less(stage: Stage) -> None:
    for rank in range(stage.fault.nnodes):
        stage.variables.setdefault(rank, {}).update(HOME="/nonexistent", TMPDIR="/nonexistent")


def _resize(stage: Stage) -> None:
    for _ in range(20):
        stage.signal(1, signal.SIGWINCH)


ALL: tuple[Fault, ...] = (
    # A rank ends by itself, and takes its partners' connections with it.
    _of_a_rank("exception", "raises"),
    _of_a_rank("before-init", "raises before the ranks have met"),
    _of_a_rank("exit-3", "leaves with sys.exit(3)"),
    _of_a_rank("os-exit-7", "leaves with os._exit(7)"),
    _of_a_rank("exit-0-early", "leaves with 0, while the others train"),
    _of_a_rank("abort", "aborts"),
    _of_a_rank("sigterm-self", "sends SIGTERM to itself"),
    _of_a_rank("sigkill", "is killed"),
    _of_a_rank("segfault", "ends with a segmentation fault"),
    _of_a_rank("assert", "fails an assertion"),
    _of_a_rank("out-of-memory", "says that the GPU's memory is out"),
    # The same, where nothing but the launcher connects the nodes.
    _of_a_node("exception", "raises", code=1),
    _of_a_node("chained", "raises while it handles a failure", code=1),
    _of_a_node("thread", "fails in a thread, and leaves with 4", code=4),
    _of_a_node("async-exception", "gets an exception from another thread", code=1),
    _of_a_node("assert", "fails an assertion", code=1),
    _of_a_node("out-of-memory", "says that the GPU's memory is out", code=1),
    _of_a_node("recursion", "recurses for ever", code=1),
    _of_a_node("import", "lacks a module", code=1),
    _of_a_node("missing-file", "lacks a file", code=1),
    _of_a_node("exit-3", "leaves with sys.exit(3)", code=3),
    _of_a_node("exit-words", "leaves with sys.exit and words", code=1),
    _of_a_node("os-exit-7", "leaves with os._exit(7)", code=7),
    _of_a_node("abort", "aborts", code=134),
    _of_a_node("sigkill", "is killed", code=137),
    _of_a_node("segfault", "ends with a segmentation fault", code=139),
    _of_a_node("bus-error", "ends with a bus error", code=135),
    _of_a_node("floating-point", "ends with a floating-point error", code=136),
    _of_a_node("illegal-instruction", "ends with an illegal instruction", code=132),
    _of_a_node("pipe", "ends with SIGPIPE", code=141),
    _of_a_node("sigterm-self", "sends SIGTERM to itself", code=143),
    _of_a_node("sigint-self", "sends SIGINT to itself"),
    _of_a_node("cpu-limit", "is over its limit of CPU time", code=152),
    _of_a_node("daemonised", "leaves a daemon behind, and raises", code=1),
    _of_a_node("forks", "leaves a hundred children behind, and raises", code=1),
    _of_a_node("deaf-child", "leaves a child that ignores SIGTERM, and raises", code=1),
    _of_a_node("descriptors", "has no descriptors left", code=1),
    # What a training may do.
    _of_a_node("zombies", "leaves fifty zombies", SURVIVES),
    _of_a_node("flood", "writes 40 MB at once", SURVIVES),
    _of_a_node("long-line", "writes a line of 10 MB", SURVIVES),
    _of_a_node("binary", "writes what is no text", SURVIVES),
    _of_a_node("mute", "closes its output", SURVIVES),
    Fault("late-node", "node 1 starts eight seconds later", SURVIVES, SHORT, prepare=_late(1, 8)),
    Fault("three-nodes", "three nodes, and nothing is wrong", SURVIVES, SHORT, nnodes=3),
    # Signals to a launcher.
    Fault(
        "sigterm-node-1", "SIGTERM to node 1's launcher", STOPS, inject=_signal(1, signal.SIGTERM), code=143
    ),
    Fault(
        "sigterm-node-0", "SIGTERM to node 0's launcher", STOPS, inject=_signal(0, signal.SIGTERM), code=143
    ),
    Fault("sigterm-all", "SIGTERM to all launchers", STOPS, inject=_signal(None, signal.SIGTERM), code=143),
    Fault("sigint-all", "SIGINT to all launchers", STOPS, inject=_signal(None, signal.SIGINT), code=130),
    Fault("sighup-all", "SIGHUP to all launchers", STOPS, inject=_signal(None, signal.SIGHUP), code=129),
    Fault("sigterm-300", "300 SIGTERMs to node 1's launcher", STOPS, inject=_many_terms, code=143),
    Fault(
        "sigterm-deaf",
        "SIGTERM, and a training that ignores it",
        STOPS,
        ("deaf", "--rank", "-1"),
        inject=_signal(None, signal.SIGTERM),
        code=143,
        options=("--grace-period", "3"),
    ),
    Fault(
        "sigterm-gloo",
        "SIGTERM to node 1's launcher, four ranks",
        STOPS,
        inject=_signal(1, signal.SIGTERM),
        code=143,
        nproc=2,
    ),
    Fault(
        "sigterm-last-word",
        "SIGTERM as the nodes have met, before the training",
        STOPS,
        inject=_on_the_last_word,
        code=143,
        starts=False,
    ),
    Fault(
        "sigterm-starting",
        "SIGTERM to all, half a second after the start",
        STOPS,
        inject=_soon(signal.SIGTERM, 0.5),
        code=143,
        starts=False,
    ),
    Fault(
        "sigterm-waiting",
        "SIGTERM to a node that waits for the others",
        STOPS,
        prepare=_absent(1),
        inject=_soon(signal.SIGTERM, 6.0),
        code=143,
        silenced=NODE_1,
        starts=False,
    ),
    Fault("sigwinch", "a terminal that changes its size", SURVIVES, SHORT, inject=_resize),
    # A launcher, or a whole machine, is lost.
    Fault(
        "kill-launcher-1",
        "node 1's launcher is killed",
        ENDS,
        inject=_signal(1, signal.SIGKILL),
        node=1,
        silenced=NODE_1,
    ),
    Fault(
        "kill-launcher-0",
        "node 0's launcher is killed",
        ENDS,
        inject=_signal(0, signal.SIGKILL),
        node=0,
        silenced=NODE_0,
    ),
    Fault(
        "stop-launcher-1",
        "node 1's launcher is stopped (SIGSTOP)",
        ENDS,
        inject=_stop_launcher(1),
        node=1,
        silenced=NODE_1,
    ),
    Fault(
        "pause-launcher-1",
        "node 1's launcher is stopped for five seconds",
        SURVIVES,
        ("none", "--steps", "90"),
        inject=_pause(1, 5.0),
    ),
    Fault("power-off-1", "node 1 loses its power", ENDS, inject=_power_off(1), node=1, silenced=NODE_1),
    Fault("power-off-0", "node 0 loses its power", ENDS, inject=_power_off(0), node=0, silenced=NODE_0),
    Fault(
        "power-off-gloo",
        "node 1 loses its power, four ranks",
        ENDS,
        inject=_power_off(1),
        node=1,
        nproc=2,
        silenced=NODE_1,
    ),
    Fault(
        "kill-helper-1",
        "node 1's rendezvous process is killed",
        SURVIVES,
        SHORT,
        own=True,
        inject=_signal_helper(1, signal.SIGKILL),
    ),
    Fault(
        "stop-helper-1",
        "node 1's rendezvous process is stopped",
        SURVIVES,
        SHORT,
        own=True,
        inject=_signal_helper(1, signal.SIGSTOP),
    ),
    Fault(
        "kill-helper-0",
        "node 0's rendezvous process is killed",
        SURVIVES,
        SHORT,
        own=True,
        inject=_signal_helper(0, signal.SIGKILL),
    ),
    # The network.
    Fault(
        "cut-5",
        "the link of node 1 is down for 5 s",
        SURVIVES,
        ("none", "--steps", "90"),
        inject=_cut(1, 5.0),
    ),
    Fault(
        "cut", "the link of node 1 goes down for good", ENDS, ("none", "--steps", "300"), inject=_cut(1, None)
    ),
    Fault(
        "cut-gloo",
        "the link of node 1 goes down for good, four ranks",
        ENDS,
        ("none",),
        inject=_cut(1, None),
        nproc=2,
    ),
    Fault(
        "one-way",
        "what node 1 sends to node 0 is lost",
        ENDS,
        ("none", "--steps", "300"),
        inject=_no_way(1, 0),
    ),
    Fault(
        "control-port-20",
        "the launchers' own port is lost for 20 s",
        SURVIVES,
        ("none", "--steps", "300"),
        inject=_no_port(1, PORT + 1, 20.0),
    ),
    Fault("garbage", "strangers write rubbish to both ports", SURVIVES, SHORT, inject=_garbage),
    Fault(
        "second-launcher",
        "a second launcher with node 1's rank",
        SURVIVES,
        ("none", "--steps", "120"),
        inject=_second_launcher,
    ),
    # The start.
    Fault(
        "absent",
        "node 1 never comes",
        REFUSED,
        prepare=_absent(1),
        silenced=NODE_1,
        starts=False,
        options=("--roll-call-timeout", "5"),
        code=75,
    ),
    Fault(
        "master-port-taken", "MASTER_PORT is taken on node 0", REFUSED, prepare=_take_port(PORT), starts=False
    ),
    Fault(
        "control-port-taken",
        "the port after MASTER_PORT is taken on node 0",
        REFUSED,
        prepare=_take_port(PORT + 1),
        starts=False,
        options=("--roll-call-timeout", "20"),
    ),
    Fault(
        "unknown-master",
        "MASTER_ADDR is a name that nobody knows",
        REFUSED,
        prepare=_other_name,
        starts=False,
        options=("--roll-call-timeout", "5"),
    ),
    Fault(
        "slow-names", "the name server takes 1.5 s for an answer", SURVIVES, SHORT, prepare=_slow_names(1.5)
    ),
    Fault(
        "slower-names", "the name server takes 4 s for an answer", SURVIVES, SHORT, prepare=_slow_names(4.0)
    ),
    # Disks, streams, limits, words.
    Fault(
        "no-log-folder",
        "node 1's folder for logs cannot be made",
        SURVIVES,
        SHORT,
        prepare=_file_for_a_folder,
    ),
    Fault(
        "no-log-folder-fails",
        "the same, and its rank raises",
        ENDS,
        ("exception",),
        prepare=_file_for_a_folder,
        node=1,
        code=1,
    ),
    Fault(
        "log-disk-full",
        "the disk of node 1's log is full",
        SURVIVES,
        ("flood", "--steps", "60"),
        prepare=_small_disk,
    ),
    Fault(
        "log-disk-full-fails",
        "the disk of node 1's log is full, and its rank raises",
        ENDS,
        ("exception",),
        prepare=_small_disk,
        node=1,
        code=1,
    ),
    Fault(
        "stdout-full",
        "node 1's output goes to a full disk",
        SURVIVES,
        SHORT,
        starts=False,
        prepare=_wrapped(*_redirected(">/dev/full 2>&1")),
    ),
    Fault(
        "stdout-closed",
        "node 1 is started without output",
        SURVIVES,
        SHORT,
        starts=False,
        prepare=_wrapped(*_redirected(">&- 2>&-")),
    ),
    Fault(
        "stdin-closed",
        "node 1 is started without input",
        SURVIVES,
        SHORT,
        prepare=_wrapped(*_redirected("<&-")),
    ),
    Fault(
        "reader-gone",
        "nobody reads node 1's output any more",
        SURVIVES,
        SHORT,
        prepare=_reader_gone,
        starts=False,
    ),
    Fault(
        "reader-stuck",
        "the reader of node 1's output is stuck, and SIGTERM comes",
        STOPS,
        ("flood", "--rank", "1"),
        prepare=_stuck_reader,
        starts=False,
        inject=_soon(signal.SIGTERM, 12.0),
    ),
    Fault("ulimit-n-32", "32 descriptors", SURVIVES, SHORT, prepare=_wrapped(*_limited("-n 32"))),
    Fault(
        "ulimit-n-12",
        "12 descriptors",
        REFUSED,
        prepare=_wrapped(*_limited("-n 12")),
        starts=False,
        options=("--roll-call-timeout", "20"),
    ),
    Fault("ulimit-f", "files of 8 KiB at most", SURVIVES, SHORT, prepare=_wrapped(*_limited("-f 16"))),
    Fault("no-home", "neither HOME nor TMPDIR can be written", SURVIVES, SHORT, prepare=_home_less),
    Fault("many-arguments", "120 KB of arguments", SURVIVES, SHORT, prepare=_more_arguments("x" * 120_000)),
    Fault(
        "strange-argument",
        "an argument that is no text",
        SURVIVES,
        SHORT,
        prepare=_more_arguments(b"--n=\xff"),
    ),
    Fault("no-locale", "LANG=C, and nothing else", SURVIVES, SHORT, prepare=_everywhere("LC_ALL", "C")),
    Fault("nice", "a launcher of the lowest priority", SURVIVES, SHORT, prepare=_wrapped("nice", "-n", "19")),
    # Restarts.
    Fault(
        "restart",
        "node 1 fails once, and one restart is allowed",
        SURVIVES,
        ("once", "--steps", "60"),
        own=True,
        options=("--max-restarts", "1"),
    ),
    Fault(
        "restarts-used",
        "node 1 fails each time, and one restart is allowed",
        ENDS,
        ("exception",),
        node=1,
        code=1,
        own=True,
        options=("--max-restarts", "1"),
    ),
)
BY_NAME = {fault.name: fault for fault in ALL}
# Cheap, and each of another kind: what every run of the tests plays.
SAMPLE = ("exit-3", "sigterm-last-word", "no-log-folder-fails", "slow-names")
