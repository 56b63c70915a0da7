"""Python programs as forks of one process that has imported torch, accelerate and DeepSpeed.

That takes seconds. For tests in which many trainings start and the start is not what is tested. Each program
is a process of its own, with arguments, environment, folder and output as if Python had started it anew.

They do not show how a program starts and ends: what it would import is there already, and neither its atexit
handlers nor the interpreter's take-down run. tests/end_to_end starts the shipped training as Python does.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

from tests.lab.waiting import LIMIT_S

# What libraries ask for while they are imported. Several "nodes" would share a GPU, which NCCL refuses.
ON_CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
# Of torch's compiler, what every optimizer imports.
_PRELOAD = (
    *("torch.distributed.run", "torch._dynamo", "accelerate.commands.launch", "transformers.integrations"),
    *("deepspeed.runtime.zero.stage3", "tensorboardX", "av"),
)


class Program:
    """One that runs, in the words of ``subprocess.Popen``. ``output`` has all that it writes."""

    def __init__(
        self, *arguments: str, folder: Path, output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOAD))
        with patch.dict(os.environ, ON_CPU):
            forkserver.ensure_running()
        self.output = output
        self._process = context.Process(
            target=_run, args=(arguments, folder, output, {**(environment or {}), **ON_CPU})
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        self._process.join(LIMIT_S)
        code = self._process.exitcode
        assert code is not None, f"does not end:\n{self.said()}"
        return code

    def said(self) -> str:
        """Return what it has written so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


@contextmanager
def program(
    *arguments: str, folder: Path, output: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """``python ARGUMENTS``, told to end where it is left before its end."""
    started = Program(*arguments, folder=folder, output=output, environment=environment)
    try:
        yield started
    finally:
        started._process.terminate()
        started.wait()


def _run(arguments: tuple[str, ...], folder: Path, output: Path, environment: Mapping[str, str]) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, str(folder))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
