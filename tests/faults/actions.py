"""What is done to a job: before its nodes start (a fault's ``prepare``), or once they train (``inject``)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from platform_launch.rendezvous.listening import candidates
from tests.faults.launchers import PORT
from tests.faults.stage import SCRIPT, Stage
from tests.lab.bad_link import bad_link
from tests.lab.waiting import LIMIT_S, until
from tests.rendezvous.cluster import processes_on

Action = Callable[[Stage], None]


def send_signal(rank: int | None, number: signal.Signals) -> Action:
    """Signal a node's launcher, None: all of them."""

    def send(stage: Stage) -> None:
        for one in range(len(stage.nodes)) if rank is None else (rank,):
            stage.signal(one, number)

    return send


def signal_guard(rank: int, number: signal.Signals) -> Action:
    """Signal the process that ends what a node's killed launcher leaves."""
    return lambda stage: os.kill(stage.guard(rank), number)


def signal_everything(rank: int | None, number: signal.Signals) -> Action:
    """Signal every process of a node, None: of all, as schedulers without control groups do."""

    def send(stage: Stage) -> None:
        for machine in stage.machines if rank is None else (stage.machines[rank],):
            for pid in processes_on(machine):
                _quietly(pid, number)

    return send


def in_turn(rank: int, pause_s: float, *numbers: signal.Signals) -> Action:
    """Send a node's launcher one signal after the other."""

    def send(stage: Stage) -> None:
        for number in numbers:
            stage.signal(rank, number)
            time.sleep(pause_s)

    return send


def freeze(rank: int, seconds: float) -> Action:
    """Stop all that runs on a node for a while, as a machine does that is moved or paused."""

    def stop_and_go(stage: Stage) -> None:
        pids = processes_on(stage.machines[rank])
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                _quietly(pid, number)
            if number is signal.SIGSTOP:
                time.sleep(seconds)

    return stop_and_go


def _quietly(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def cut_link(rank: int, seconds: float | None) -> Action:
    """Pull a host's cable, for good or for a while."""

    def cut(stage: Stage) -> None:
        machine = stage.machines[rank]
        machine.cut()
        stage.later(machine.heal)
        if seconds is not None:
            time.sleep(seconds)
            machine.heal()

    return cut


def flap_link(rank: int, seconds: float) -> Action:
    """Pull a host's cable for a third of each second, for a while."""

    def flap(stage: Stage) -> None:
        machine, end = stage.machines[rank], time.monotonic() + seconds
        stage.later(machine.heal)
        while time.monotonic() < end:
            machine.cut()
            time.sleep(0.33)
            machine.heal()
            time.sleep(0.67)

    return flap


def slow_link(rank: int, rate: str) -> Action:
    """Let a host send no faster than this."""

    def slow(stage: Stage) -> None:
        limit = f"qdisc add dev eth0 root tbf rate {rate} burst 4kb latency 400ms"
        command = ["tc", "-n", stage.machines[rank].namespace, *limit.split()]
        subprocess.run(command, check=True, capture_output=True)

    return slow


def slow_and_lossy_link(rank: int, delay_s: float, loss: float) -> Action:
    """Let a host's cable delay and lose what it carries, each way."""

    def spoil(stage: Stage) -> None:
        link = bad_link(stage.machines[rank], stage.machines, delay_s=delay_s, loss=loss)
        link.__enter__()
        stage.later(lambda: link.__exit__(None, None, None))

    return spoil


def lose_large_packets(rank: int, most_bytes: int) -> Action:
    """Lose what a host sends in packets larger than this, as where one switch has no jumbo frames."""

    return lambda stage: stage.machines[rank].lose_large_packets(most_bytes)


def lose_way(rank: int, towards: int, seconds: float | None = None) -> Action:
    """Lose what one host sends to another; the way back stays."""

    def lose(stage: Stage) -> None:
        address = stage.machines[towards].address
        stage.ip(rank, f"route add blackhole {address}/32", f"route del blackhole {address}/32")
        if seconds is not None:
            time.sleep(seconds)
            stage.ip(rank, f"route del blackhole {address}/32")

    return lose


def lose_port(rank: int, port: int, seconds: float | None) -> Action:
    """Lose what a host sends to one port of node 0."""

    def lose(stage: Stage) -> None:
        rule = f"to {stage.machines[0].address} ipproto tcp dport {port} blackhole"
        stage.ip(rank, f"rule add {rule} pref 1", f"rule del {rule} pref 1")
        if seconds is not None:
            time.sleep(seconds)
            stage.ip(rank, f"rule del {rule} pref 1")

    return lose


def power_off(rank: int) -> Action:
    """End a machine at once."""

    return lambda stage: stage.power_off(rank)


def many_terms(stage: Stage) -> None:
    """Send SIGTERM as a nervous script does."""

    for _ in range(300):
        stage.signal(1, signal.SIGTERM)


def second_launcher(stage: Stage) -> None:
    """A stranger comes with node 1's rank and another script, as a second job on the same machine does."""
    stranger = stage.start(1, logs=stage.folder / "stranger")
    with suppress(subprocess.TimeoutExpired):
        stranger.process.wait(60)
    stranger.process.kill()


def second_job(stage: Stage) -> None:
    """Start another job on the same hosts, with the same MASTER_PORT."""
    script = (str(SCRIPT), "none", "--steps", "7")
    nodes = [stage.start(rank, logs=stage.folder / f"other{rank}", script=script) for rank in (0, 1)]
    for node in nodes:
        with suppress(subprocess.TimeoutExpired):
            node.process.wait(60)
        node.process.kill()


@contextmanager
def _listening(stage: Stage, rank: int, port: int) -> Iterator[socket.socket]:
    with stage.machines[rank].entered(), socket.create_server(("", port)) as server:
        yield server


def take_port(port: int) -> Action:
    """Listen on a port of node 0 before it does."""

    def take(stage: Stage) -> None:
        holder = _listening(stage, 0, port)
        holder.__enter__()
        stage.later(lambda: holder.__exit__(None, None, None))

    return take


def garbage(stage: Stage) -> None:
    """Write rubbish to the ports of a job."""

    for port in (PORT, *candidates(PORT)):
        place = (stage.machines[0].address, port)
        with (
            suppress(OSError),
            stage.machines[1].entered(),
            socket.create_connection(place, timeout=LIMIT_S) as connection,
        ):
            connection.sendall(os.urandom(4096))


def set_everywhere(name: str, value: str) -> Action:
    """Set a variable on all nodes."""

    def put(stage: Stage) -> None:
        for rank in range(stage.fault.nnodes):
            stage.variables.setdefault(rank, {})[name] = value

    return put


def wrapped(*argv: str, rank: int = 1) -> Action:
    """Start a node's launcher by another command."""

    def wrap(stage: Stage) -> None:
        stage.wrapped[rank] = argv

    return wrap


def after(line: str) -> Action:
    """Start node 1's launcher from a shell that does something first."""
    return wrapped("sh", "-c", f'{line}; exec "$0" "$@"')


def redirected(line: str) -> Action:
    """Start node 1's launcher with other streams."""
    return wrapped("sh", "-c", f'exec "$0" "$@" {line}')


def file_for_a_folder(stage: Stage) -> None:
    """Put a file where node 1 wants its folder for logs."""

    stage.logs(1).write_text("in the way of the log's folder")


def small_disk(stage: Stage) -> None:
    """Give node 1's log a disk of 64 KiB."""

    folder = stage.logs(1)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    stage.later(lambda: subprocess.run(["umount", "--lazy", str(folder)], check=False))


def stuck_reader(stage: Stage) -> None:
    """Let node 1 write to a pipe that nobody empties."""

    reading, writing = os.pipe()
    stage.streams[1] = writing
    stage.later(lambda: os.close(reading))
    stage.later(lambda: os.close(writing))


def reader_gone(stage: Stage) -> None:
    """Let node 1 write to a pipe that nobody reads."""

    reading, writing = os.pipe()
    os.close(reading)
    stage.streams[1] = writing
    stage.later(lambda: os.close(writing))


def more_arguments(*words: str | bytes) -> Action:
    """Give the training more arguments."""

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


def slow_names(delay_s: float) -> Action:
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


def _name_node_0(stage: Stage, address: str) -> None:
    """Let all hosts find node 0 at this address; nowhere if it is empty."""
    for machine in stage.machines:
        path = machine.etc / "hosts"
        kept = [line for line in path.read_text().splitlines() if "node0" not in line]
        path.write_text("\n".join([*kept, *([f"{address} node0"] if address else []), ""]))


def stale_name(seconds: float) -> Action:
    """Let node 0's name lead to an address that nobody has, as a cache of a name server does, for so long."""

    def prepare(stage: Stage) -> None:
        right = stage.machines[0].address
        _name_node_0(stage, right.rpartition(".")[0] + ".77")
        timer = threading.Timer(seconds, _name_node_0, (stage, right))
        timer.start()
        stage.later(partial(_name_node_0, stage, right))
        stage.later(timer.cancel)

    return prepare


def no_names(stage: Stage) -> None:
    """Let node 0's name lead nowhere from now on."""
    _name_node_0(stage, "")
    stage.later(partial(_name_node_0, stage, stage.machines[0].address))


def keep_away(rank: int) -> Action:
    """Never start a node."""

    return lambda stage: stage.absent.add(rank)


def start_late(rank: int, seconds: float) -> Action:
    """Start a node later."""

    return wrapped("sh", "-c", f'sleep {seconds}; exec "$0" "$@"', rank=rank)


def other_name(stage: Stage) -> None:
    """Call node 0 what nobody knows."""

    stage.master = "nowhere.invalid"


def signal_soon(number: signal.Signals, seconds: float) -> Action:
    """Send a signal to all nodes so many seconds after their start."""

    def send(stage: Stage) -> None:
        time.sleep(seconds)
        for rank in range(len(stage.nodes)):
            stage.signal(rank, number)

    return send


def on_the_last_word(stage: Stage) -> None:
    """Send SIGTERM the moment that the roll call is over and the training is about to start."""
    word = "roll-call-complete" if stage.launcher.own_options else "training on rank"
    signal_on(word, 1, signal.SIGTERM)(stage)


def pause(rank: int, seconds: float) -> Action:
    """Stop a node's launcher for a while."""

    def stop_and_go(stage: Stage) -> None:
        stage.signal(rank, signal.SIGSTOP)
        time.sleep(seconds)
        stage.signal(rank, signal.SIGCONT)

    return stop_and_go


def named_as_debian_does(stage: Stage) -> None:
    """Let each host take its own name for 127.0.1.1."""
    for machine in stage.machines:
        path = machine.etc / "hosts"
        whole = path.read_text()
        path.write_text(whole.replace(f"{machine.address} {machine.name}\n", f"127.0.1.1 {machine.name}\n"))
        stage.later(partial(path.write_text, whole))


def large_environment(stage: Stage) -> None:
    """Give node 1 so many variables that few more fit."""
    for number in range(15):
        variable(f"LARGE_{number}", "x" * 120_000)(stage)


def no_ipv6(stage: Stage) -> None:
    """Switch IPv6 off on all hosts."""
    for machine in stage.machines:
        off = machine.run(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"])
        assert off.returncode == 0, off.stderr


def home_less(stage: Stage) -> None:
    """Leave no folder that can be written."""

    for rank in range(stage.fault.nnodes):
        stage.variables.setdefault(rank, {}).update(HOME="/nonexistent", TMPDIR="/nonexistent")


def resize(stage: Stage) -> None:
    """Change the terminal's size, often."""

    for _ in range(20):
        stage.signal(1, signal.SIGWINCH)


_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) {
  char text[32] = "";
  int file = open(getenv("CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  if (read(file, text, 31) < 0) text[0] = 0;
  close(file);
  return atol(text);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, now);
  if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return code;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  int code = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
  return code;
}
time_t time(time_t *kept) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (kept) *kept = exact.tv_sec;
  return exact.tv_sec;
}
"""


def shifted_clock(stage: Stage) -> None:
    """Let node 1 read a clock that :func:`jump_clock` sets."""
    library = stage.folder / "clock.so"
    build = ["cc", "-shared", "-fPIC", "-w", "-o", str(library), "-x", "c", "-", "-ldl"]
    subprocess.run(build, input=_CLOCK, text=True, check=True, capture_output=True)
    (stage.folder / "shift").write_text("0")
    stage.variables[1] = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(stage.folder / "shift")}


def jump_clock(*shifts_s: int) -> Action:
    """Set node 1's clock forward and back, every two seconds."""

    def jump(stage: Stage) -> None:
        for shift_s in shifts_s:
            (stage.folder / "shift").write_text(str(shift_s))
            time.sleep(2)

    return jump


def variable(name: str, value: str) -> Action:
    """Set a variable on node 1."""

    def put(stage: Stage) -> None:
        stage.variables.setdefault(1, {})[name] = value

    return put


def read_only_tmp(stage: Stage) -> None:
    """Give node 1 a TMPDIR that nobody can write to."""
    folder = stage.folder / "sealed"
    folder.mkdir()
    after(f"mount -t tmpfs -o ro tmpfs {folder}; export TMPDIR={folder}")(stage)


def remove(which: str) -> Action:
    """Remove one of node 1's folders while it trains, as somebody does who needs room."""

    def clear(stage: Stage) -> None:
        shutil.rmtree(stage.folder / f"{which}1", ignore_errors=True)

    return clear


def under_a_shell(stage: Stage) -> None:
    """Start node 1's launcher as the child of a shell script."""
    wrapped("sh", "-c", '"$0" "$@"; true')(stage)


def kill_the_shell(stage: Stage) -> None:
    """Kill the shell that waits for node 1's launcher, and wait for what it leaves."""
    stage.signal(1, signal.SIGKILL)
    until(lambda: not processes_on(stage.machines[1]), "it goes on for ever")


def twice(number: signal.Signals, pause_s: float) -> Action:
    """Signal all launchers, and once more."""

    def send(stage: Stage) -> None:
        for _ in range(2):
            for rank in range(len(stage.nodes)):
                stage.signal(rank, number)
            time.sleep(pause_s)

    return send


def signal_on(event: str, rank: int, number: signal.Signals) -> Action:
    """Signal a node's launcher the moment that it says something."""

    def send(stage: Stage) -> None:
        stage.nodes[rank].when(event)
        stage.signal(rank, number)

    return send


def both(*actions: Action) -> Action:
    """Do one after the other."""

    def do_all(stage: Stage) -> None:
        for action in actions:
            action(stage)

    return do_all


_GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


def _group() -> str:
    return f"faults{os.getpid()}"


def _without_fuss(group: Path) -> None:
    with suppress(OSError):
        group.rmdir()


def few_processes(most: int) -> Action:
    """Run node 1 in a control group that holds so many processes and threads."""

    def limit(stage: Stage) -> None:
        shown, group = stage.folder / "groups", _group()
        shown.mkdir()
        show = f"mount -t cgroup -o pids none {shown} 2>/dev/null || mount -t cgroup2 none {shown}"
        make = f"mkdir {shown}/{group}; echo {most} > {shown}/{group}/pids.max"
        after(f"{show}; {make}; echo $$ > {shown}/{group}/cgroup.procs; umount -l {shown}")(stage)
        for root in _GROUPS:
            stage.later(partial(_without_fuss, root / group))

    return limit
