"""A tiny training that does one wrong thing, on one rank, at one step: ``training.py FAULT --rank 1``.

With ``--gloo`` its ranks meet and exchange a number each step, so that one that leaves takes the others'
connections with it; without, it needs no torch, and starts at once. Any launcher that sets RANK and
WORLD_SIZE can start it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

STEP_S = 0.1
RANK = int(os.environ.get("RANK", "0"))


def main() -> int:
    """Be one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=["none", *FAULTS])
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=5, metavar="STEP")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--gloo", action="store_true")
    options, _ = parser.parse_known_args()
    faulty = options.rank == RANK or options.rank < 0
    if faulty and options.fault == "before-init":
        FAULTS["exception"]()
    exchange = meet() if options.gloo else lambda: None
    print(f"training on rank {RANK}", flush=True)
    for step in range(options.steps):
        if faulty and step == options.at and options.fault != "none":
            FAULTS[options.fault]()
        exchange()
        if chatters:
            os.write(1, b"a line that nobody reads\n" * 2000)
        if step % 10 == 0:
            print(f"Step {step}/{options.steps}", flush=True)
        time.sleep(STEP_S)
    return 0


def meet() -> Callable[[], object]:
    """Meet the other ranks; return one step's exchange."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return lambda: dist.all_reduce(torch.ones(8))


def by(number: signal.Signals) -> Callable[[], None]:
    """Return a fault that is a signal to this process."""
    return lambda: os.kill(os.getpid(), number)


def fail() -> None:
    """Raise where anybody sees it."""
    raise ValueError("the data is wrong")


def out_of_memory() -> None:
    """Fail as torch does where a GPU has no memory left."""
    raise RuntimeError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
        "1.06 GiB is free."
    )


def chained() -> None:
    """Fail while a failure is handled."""
    try:
        fail()
    except ValueError as error:
        raise RuntimeError("loading the batch failed") from error


def in_a_thread() -> None:
    """Fail elsewhere, and leave because of it."""
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    sys.exit(4)


def from_elsewhere() -> None:
    """Have an exception raised here by another thread."""
    main_thread = ctypes.c_ulong(threading.main_thread().ident or 0)
    threading.Timer(
        0.2, lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main_thread, ctypes.py_object(KeyError))
    ).start()
    while True:
        time.sleep(0.01)


def daemonised() -> None:
    """Leave a process behind that has its own session, and fail."""
    subprocess.Popen(["setsid", "sleep", "600"], start_new_session=True)
    fail()


def many_forks() -> None:
    """Leave a hundred children behind, and fail."""
    for _ in range(100):
        subprocess.Popen(["sleep", "600"])
    fail()


def deaf_child() -> None:
    """Leave a child behind that ignores every polite word, and fail."""
    subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 600 & wait; sleep 600"])
    time.sleep(0.3)
    fail()


def descriptors() -> None:
    """Open files until there is no descriptor left."""
    kept = []
    while True:
        kept.append(Path("/dev/null").open())  # noqa: SIM115 - that is the fault


def recursion() -> None:
    """Call itself until Python gives up."""
    recursion()


def deaf() -> None:
    """Ignore requests to end, from here on."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("deaf", flush=True)


def next_port() -> None:
    """Listen on the port where the nodes meet, as a script may that makes a second group."""
    global kept_server
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from platform_launch.rendezvous.listening import candidates

    kept_server = socket.create_server(("", candidates(int(os.environ["MASTER_PORT"]))[0]))


kept_server: socket.socket


def zombies() -> None:
    """Start children that end, and are never waited for."""
    global kept
    kept = [subprocess.Popen(["true"]) for _ in range(50)]


kept: list[subprocess.Popen[bytes]] = []


def flood() -> None:
    """Write much at once."""
    for _ in range(400):
        os.write(1, b"x" * 99 + b"\n" + b"a line of the training that is long enough to count\n" * 2000)


def chatter() -> None:
    """Write from here on more than a pipe holds, a little each step."""
    global chatters
    chatters = True


chatters = False


def long_line() -> None:
    """Write a line of ten megabytes."""
    sys.stdout.write("y" * 10_000_000 + "\n")
    sys.stdout.flush()


def binary() -> None:
    """Write what is no text."""
    os.write(1, bytes(range(256)) * 2000 + b"\n")


def mute() -> None:
    """Close the way to whoever listens."""
    for number in (1, 2):
        os.close(number)
        os.open(os.devnull, os.O_WRONLY)


def once() -> None:
    """Fail at the first start only."""
    if os.environ.get("PLATFORM_LAUNCH_RESTART_COUNT", os.environ.get("TORCHELASTIC_RESTART_COUNT")) == "0":
        fail()


FAULTS: dict[str, Callable[[], object]] = {
    "exception": fail,
    "before-init": lambda: None,
    "chained": chained,
    "thread": in_a_thread,
    "async-exception": from_elsewhere,
    "assert": lambda: exec("assert 1 == 2, 'shapes differ'"),
    "out-of-memory": out_of_memory,
    "recursion": recursion,
    "import": lambda: __import__("a_module_that_is_not_there"),
    "missing-file": lambda: Path("/nowhere/shard-00017.tar").read_bytes(),
    "exit-3": lambda: sys.exit(3),
    "exit-words": lambda: sys.exit("the config names no data"),
    "os-exit-7": lambda: os._exit(7),
    "exit-0-early": lambda: os._exit(0),
    "sys-exit-0-early": lambda: sys.exit(0),
    "abort": os.abort,
    "sigkill": by(signal.SIGKILL),
    "segfault": by(signal.SIGSEGV),
    "bus-error": by(signal.SIGBUS),
    "floating-point": by(signal.SIGFPE),
    "illegal-instruction": by(signal.SIGILL),
    "pipe": lambda: (signal.signal(signal.SIGPIPE, signal.SIG_DFL), by(signal.SIGPIPE)()),
    "sigterm-self": by(signal.SIGTERM),
    "sigint-self": by(signal.SIGINT),
    "cpu-limit": by(signal.SIGXCPU),
    "daemonised": daemonised,
    "forks": many_forks,
    "deaf-child": deaf_child,
    "descriptors": descriptors,
    "deaf": deaf,
    "next-port": next_port,
    "zombies": zombies,
    "flood": flood,
    "chatter": chatter,
    "long-line": long_line,
    "binary": binary,
    "mute": mute,
    "once": once,
}

if __name__ == "__main__":
    sys.exit(main())
