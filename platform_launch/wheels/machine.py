"""What an extension must match: interpreter, torch, C++ compiler and CUDA toolkit of this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platform_launch.errors import InstallationError
from platform_launch.helper import answer_line
from platform_launch.supervise import Command, capture
from platform_launch.text import Phrase

Version = tuple[int, ...]

_PROBES = Path(__file__).with_name("probes")
# `import torch` from a cold network file system takes a minute or two.
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Torch:
    """``cuda`` and ``hip`` are the versions torch was built with, None without them.

    ``bounds`` are torch's own: compiler family → lowest version, and for CUDA also the first that is too new.
    """

    version: str
    cuda: str | None
    cxx11_abi: bool
    hip: str | None = None
    cuda_home: Path | None = None
    compiler: str = "c++"
    include_paths: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[Version, Version | None]] = field(default_factory=dict)

    @property
    def release(self) -> Version:
        """Return major and minor; DeepSpeed compares them when it loads an op (op_builder/builder.py)."""
        return version_numbers(self.version)[:2]


@dataclass(frozen=True)
class Interpreter:
    """One Python installation. ``packages`` holds those of pip, setuptools, wheel and deepspeed it has.

    ``headers`` is None if Python.h is missing; ``torch_problem`` is why ``torch`` is None.
    """

    executable: str
    python: str
    python_tag: str
    platform_tag: str
    libc: str
    headers: Path | None
    ninja: str | None
    packages: Mapping[str, str]
    torch: Torch | None
    torch_problem: str = ""


@dataclass(frozen=True)
class Compiler:
    """``family`` is gcc or clang; ``problem`` is empty if it compiled the test file."""

    command: str
    family: str
    version: Version
    problem: str


@dataclass(frozen=True)
class Toolkit:
    """CUDA's compiler. ``release`` is empty if it does not run; ``machine_codes`` look like ``sm_90``."""

    nvcc: Path
    release: str = ""
    machine_codes: frozenset[str] = frozenset()


def environment_for(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the interpreter's own programs (ninja) first, as in an activated venv."""
    own = str(Path(python).parent)
    return {**env, "PATH": f"{own}{os.pathsep}{env.get('PATH', os.defpath)}"}


def query_interpreter(python: str, env: Mapping[str, str]) -> Interpreter:
    """Query a Python installation. Raises InstallationError if it does not answer."""
    facts = run_probe("machine.py", python, env)
    packages = {name: version for name, version in facts.pop("packages").items() if version}
    torch, headers = facts.pop("torch"), facts.pop("headers")
    problem = Phrase("torch is not installed") if torch is None else torch.get("error", "")
    return Interpreter(
        **facts,
        headers=Path(headers) if headers else None,
        packages=packages,
        torch=None if problem else _torch(torch),
        torch_problem=problem,
    )


def run_probe(
    name: str, python: str, env: Mapping[str, str], *arguments: str, timeout_s: float = _LIMIT_S
) -> dict[str, Any]:
    """Run a program of ``probes/`` and return the object it prints. Raises InstallationError without one."""
    command = Command((python, str(_PROBES / name), *arguments), environment_for(python, env))
    answer = capture(command, timeout_s=timeout_s)
    try:
        facts = json.loads(answer_line(answer.stdout))
    except ValueError:
        facts = None
    if answer.exit_code == 0 and isinstance(facts, dict):
        return facts
    raise InstallationError(
        Phrase(
            "cannot list the packages of {python}: {problem}",
            python=python,
            problem=answer.failure(timeout_s),
        ),
        Phrase("run it by hand to see why: {command}", command=shlex.join(command.argv)),
    )


def _torch(facts: dict[str, Any]) -> Torch:
    cuda = facts["cuda"]
    bounds = {}
    for family in ("gcc", "clang"):
        lowest: Any = facts[f"{family}_minimum"]
        highest: Any = None
        if cuda is not None:
            lowest, highest = facts[f"{family}_for_cuda"].get(".".join(cuda.split(".")[:2]), (lowest, None))
        bounds[family] = (tuple(lowest), None if highest is None else tuple(highest))
    return Torch(
        version=facts["version"],
        cuda=cuda,
        hip=facts["hip"],
        cxx11_abi=facts["cxx11_abi"],
        cuda_home=Path(facts["cuda_home"]) if facts["cuda_home"] else None,
        compiler=facts["compiler"],
        include_paths=tuple(facts["include_paths"]),
        bounds=bounds,
    )


def query_compiler(interpreter: Interpreter, env: Mapping[str, str]) -> Compiler:
    """Query the version of the C++ compiler that torch would call, and let it compile a few lines."""
    torch = interpreter.torch
    command = torch.compiler if torch is not None else env.get("CXX", "c++")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:  # CXX has an unclosed quote
        return Compiler(command, "", (), str(error))
    answer = capture(Command((*words, "--version"), env), timeout_s=_LIMIT_S)
    if answer.exit_code != 0:
        return Compiler(
            command, "", (), (answer.stderr.strip().splitlines() or [Phrase("it does not run")])[-1]
        )
    numbers = capture(Command((*words, "-dumpfullversion", "-dumpversion"), env), timeout_s=_LIMIT_S)
    family = "clang" if "clang" in answer.stdout else "gcc"
    return Compiler(command, family, version_numbers(numbers.stdout), _trial(words, interpreter, env))


def _trial(compiler: tuple[str, ...], interpreter: Interpreter, env: Mapping[str, str]) -> str:
    """Compile what every op begins with; return the first error."""
    torch = interpreter.torch
    if torch is None or interpreter.headers is None:
        return ""  # reported elsewhere
    # The C++ standard of DeepSpeed and torch (op_builder/builder.py of DeepSpeed 0.19, cxx_args).
    standard = "-std=c++20" if torch.release >= (2, 12) else "-std=c++17"
    folders = [f"-I{folder}" for folder in (*torch.include_paths, str(interpreter.headers))]
    argv = (*compiler, standard, "-fopenmp", "-fsyntax-only", *folders, str(_PROBES / "trial.cpp"))
    answer = capture(Command(argv, env), timeout_s=_LIMIT_S)
    if answer.exit_code == 0:
        return ""
    lines = answer.stderr.strip().splitlines() or [Phrase("the compiler failed without a message")]
    return next((line for line in lines if "error" in line), lines[-1])


def query_toolkit(torch: Torch, env: Mapping[str, str]) -> Toolkit | None:
    """Query the nvcc that torch would call; None if torch finds no CUDA toolkit."""
    if torch.cuda_home is None:
        return None
    nvcc = torch.cuda_home / "bin" / "nvcc"
    answer = capture(Command((str(nvcc), "--version"), env), timeout_s=_LIMIT_S)
    release = re.search(r"release ([0-9]+\.[0-9]+)", answer.stdout)
    if answer.exit_code != 0 or release is None:
        return Toolkit(nvcc)
    codes = capture(Command((str(nvcc), "--list-gpu-code"), env), timeout_s=_LIMIT_S)
    return Toolkit(nvcc, release[1], frozenset(codes.stdout.split()))


def version_numbers(text: str) -> Version:
    """Return the leading numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    match = re.match(r"\s*([0-9]+(?:\.[0-9]+)*)", text)
    return tuple(int(number) for number in match[1].split(".")) if match else ()
