"""A tiny training on gloo in which one rank stops making progress in ways that are asked for.

    torchrun --nproc-per-node 2 tests/lab/hanging.py FAULT[,FAULT…] [--rank 1] [--step 5] [--folder FOLDER]

The first comes at ``--step``, the next as many steps after it. SIGUSR1 ends a fault in Python, SIGCONT a
stop, and a byte in the FIFO ``release`` or ``shard`` of the folder what reads from it. It prints no step, so
that only what a launcher sees by itself can tell that nothing moves.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

STEP_S = 0.05
SLOW_READ_S = 0.1


def main() -> int:
    """Run one rank of the training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", type=lambda text: text.split(","))
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long a fault lasts that ends")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds, of collectives")
    parser.add_argument("--slow", action="store_true", help="the data of --rank takes long in each step")
    options = parser.parse_args()
    if unknown := {*options.faults} - {"none", *FAULTS, *IN_THE_DATA}:
        parser.error(f"no such fault: {unknown}")
    signal.signal(signal.SIGUSR1, release)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank = dist.get_rank()
    faulty = rank == options.rank
    data = iter(
        DataLoader(Numbers(options, faulty=faulty), num_workers=bool({*options.faults} & {*IN_THE_DATA}))
    )
    for step in range(options.steps):
        number = next(data)
        try:
            if faulty and FAULTS.get(fault_at(step, options), go_on)(options):
                continue
        except ReleasedError:
            pass
        train_step(number)
    dist.barrier()
    dist.destroy_process_group()
    return 0


class ReleasedError(Exception):
    """A fault has lasted for long enough."""


def release(_number: int, _frame: object) -> None:
    """End what the main thread is doing."""
    raise ReleasedError


def fault_at(step: int, options: argparse.Namespace) -> str:
    """Return the fault of a step, if it has one."""
    number, rest = divmod(step, options.step)
    return options.faults[number - 1] if rest == 0 and 0 < number <= len(options.faults) else ""


def go_on(_options: argparse.Namespace) -> None:
    """Do nothing wrong."""


def train_step(number: torch.Tensor) -> None:
    """Do the step's one collective."""
    dist.all_reduce(number)
    time.sleep(STEP_S)


class Numbers(IterableDataset[torch.Tensor]):
    """Endless data; at the step of a fault in the data it comes no more."""

    def __init__(self, options: argparse.Namespace, *, faulty: bool) -> None:
        self._options = options
        self._faulty = faulty

    def __iter__(self) -> Iterator[torch.Tensor]:
        options, step = self._options, 0
        while True:
            if self._faulty:
                IN_THE_DATA.get(fault_at(step, options), go_on)(options)
            if self._options.slow and self._faulty:
                slow_read()
            yield torch.ones(8)
            step += 1


def slow_read() -> None:
    """Wait for storage that is slower than the others'."""
    time.sleep(SLOW_READ_S)


def sleep(options: argparse.Namespace) -> None:
    """Wait for nothing at all."""
    time.sleep(options.seconds)


def loop(options: argparse.Namespace) -> None:
    """Compute for ever: a third of the time, which is clearly no waiting and leaves the rest to others."""
    end, number = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        number += 1
        if number % 50_000 == 0:
            time.sleep(0.01)


def hold_gil(options: argparse.Namespace) -> None:
    """Wait in C for a byte that does not come, and let no other thread of Python run."""
    descriptor = os.open(options.folder / "release", os.O_RDWR)  # for both, so that opening it does not wait
    ctypes.PyDLL(None).read(descriptor, ctypes.create_string_buffer(1), 1)
    os.close(descriptor)


def stop_self(_options: argparse.Namespace) -> None:
    """Be stopped, as by a debugger or a batch system."""
    os.kill(os.getpid(), signal.SIGSTOP)


def dead_lock(_options: argparse.Namespace) -> None:
    """Let two threads wait for each other's lock."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other_way() -> None:
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=other_way, name="other-way", daemon=True).start()
    with first:
        both.wait()
        with second:
            pass


def other_collective(_options: argparse.Namespace) -> bool:
    """Take part in another operation than the others."""
    dist.broadcast(torch.ones(3), src=dist.get_rank())
    dist.all_gather([torch.ones(2) for _ in range(dist.get_world_size())], torch.ones(2))
    return True


def skip(options: argparse.Namespace) -> bool:
    """Leave out a collective, and come to the next phase alone."""
    dist.barrier()
    return True


def leave(_options: argparse.Namespace) -> None:
    """End early, with success, as a rank that ran out of data may."""
    sys.exit()


def blocked_write(options: argparse.Namespace) -> None:
    """Write a checkpoint to a file system that does not answer."""
    torch.save({"weight": torch.ones(4_000_000)}, options.folder / "checkpoint.pt")
    with (options.folder / "checkpoint.pt").open("rb+") as file:
        os.fsync(file.fileno())


def validate(options: argparse.Namespace) -> None:
    """Look at many samples, while the others wait."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)), torch.nn.ReLU())
    end = time.monotonic() + options.seconds
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.ones(64, 64))


def compile_model(options: argparse.Namespace) -> None:
    """Use the CPU the way a compiler does, deep in functions of ever other names; a third of the time."""
    end = time.monotonic() + options.seconds
    names = [f"lower_{number}" for number in range(40)]
    source = "\n".join(
        f"def {name}(depth):\n    total = sum(range(20000))\n"
        f"    return sleep(0.005) if depth == 0 else {names[(n * 7 + 3) % 40]}(depth - 1)\n"
        for n, name in enumerate(names)
    )
    functions: dict[str, Any] = {"sleep": time.sleep}
    exec(compile(source, "lowering.py", "exec"), functions)
    count = 0
    while time.monotonic() < end:
        functions[names[count % 40]](count % 30)
        count += 1


def retry(options: argparse.Namespace) -> None:
    """Try again for ever, and print a counter."""
    end, attempt = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        attempt += 1
        print(f"attempt {attempt} failed (connection refused), retrying", flush=True)
        time.sleep(0.5)


def wait_for_lock(options: argparse.Namespace) -> None:
    """Wait for a file lock that a process of another job holds."""
    path = options.folder / "cache.lock"
    code = f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2)"
    code += "; print(1, flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            with path.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            holder.kill()


def wait_for_answer(_options: argparse.Namespace) -> None:
    """Ask a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = http.client.HTTPConnection(*server.getsockname())
        connection.request("GET", "/")
        connection.getresponse()


def build(options: argparse.Namespace) -> None:
    """Let another program work, as a build does."""
    code = f"import time\nend = time.time() + {options.seconds}\n"
    code += "while time.time() < end:\n    sum(range(99999)); time.sleep(0.02)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def move_data(options: argparse.Namespace) -> None:
    """Write to slow storage: 0.5 MB/s, with next to no CPU time."""
    end = time.monotonic() + options.seconds
    with Path(os.devnull).open("wb", buffering=0) as storage:
        while time.monotonic() < end:
            storage.write(bytes(250_000))
            time.sleep(0.5)


def end_by(number: signal.Signals) -> Callable[[argparse.Namespace], None]:
    """Return a fault that is a signal."""
    return lambda _options: os.kill(os.getpid(), number)


def fail(_options: argparse.Namespace) -> None:
    """Raise in the main thread."""
    raise RuntimeError("a fault that was asked for")


def fail_from_elsewhere(_options: argparse.Namespace) -> None:
    """Have an exception raised in the main thread by another one."""
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    threading.Timer(
        0.2, lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(RuntimeError))
    ).start()
    while True:
        time.sleep(0.01)


def read_fifo(options: argparse.Namespace) -> None:
    """Open a file that never comes."""
    (options.folder / "shard").open("rb").read(1)


FAULTS: dict[str, Callable[[argparse.Namespace], bool | None]] = {
    "sleep": sleep,
    "loop": loop,
    "gil": hold_gil,
    "stop": stop_self,
    "dead-lock": dead_lock,
    "other-collective": other_collective,
    "skip": skip,
    "leave": leave,
    "blocked-write": blocked_write,
    "validate": validate,
    "compile": compile_model,
    "retry": retry,
    "lock": wait_for_lock,
    "no-answer": wait_for_answer,
    "build": build,
    "move-data": move_data,
    "segfault": end_by(signal.SIGSEGV),
    "sigkill": end_by(signal.SIGKILL),
    "sigterm": end_by(signal.SIGTERM),
    "sigint": end_by(signal.SIGINT),
    "abort": end_by(signal.SIGABRT),
    "exception": fail,
    "async-exception": fail_from_elsewhere,
}
IN_THE_DATA: dict[str, Callable[[argparse.Namespace], None]] = {
    "data-stop": stop_self,
    "data-fifo": read_fifo,
}

if __name__ == "__main__":
    sys.exit(main())
