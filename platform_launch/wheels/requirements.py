"""The requirements of a build, checked in seconds instead of failing an hour later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform_launch.text import Phrase, joined
from platform_launch.wheels.machine import Compiler, Interpreter, Toolkit, Torch, Version, version_numbers
from platform_launch.wheels.target import Target

# Measured for DeepSpeed 0.19: source and its copies 80 MB, a CPU op 20–50 MB with its object files. A CUDA
# op leaves some ten times as much for each architecture.
_SOURCE_GIB = 0.25
_CPU_OP_GIB = 0.1
_CUDA_OP_GIB = 0.4
# A translation unit that includes torch/extension.h takes 1–2 GB in cc1plus, and more in nvcc's cicc.
_JOB_GIB = {"cpu": 2.0, "cuda": 4.0}


@dataclass(frozen=True)
class Requirement:
    """One requirement of a build: what was found, what is expected, and how to fix a difference."""

    name: str
    found: str
    expected: str
    met: bool
    mend: str = ""


def requirements(
    interpreter: Interpreter,
    compiler: Compiler,
    toolkit: Toolkit | None,
    target: Target,
    *,
    ops: Sequence[str],
    free_gib: float,
    folder: str,
) -> list[Requirement]:
    """Compare a machine with what a build of these ops needs. ``folder`` is where ``free_gib`` is free."""
    torch = interpreter.torch
    found = [
        _build_packages(interpreter),
        _headers(interpreter),
        _compiler(compiler, torch, target),
        _ninja(interpreter),
        _disk(target, len(ops), free_gib, folder),
    ]
    if torch is not None and target.backend == "cuda":
        found.append(_toolkit(torch, toolkit))
        if toolkit is not None and toolkit.release:
            found.append(_architectures(toolkit, target))
    return found


def default_jobs(backend: str, cpus: float, memory_gib: float | None) -> int:
    """Return how many compilers to run at once: one per processor, as far as memory allows."""
    by_memory = cpus if memory_gib is None else memory_gib / _JOB_GIB[backend]
    return max(1, int(min(cpus, by_memory)))


def _build_packages(interpreter: Interpreter) -> Requirement:
    packages = interpreter.packages
    missing = [name for name in ("pip", "setuptools") if name not in packages]
    # Since setuptools 70.1, it has the command of the package wheel.
    if "setuptools" in packages and "wheel" not in packages:
        missing += ["wheel"] if version_numbers(packages["setuptools"]) < (70, 1) else []
    found = [f"{name} {packages[name]}" for name in ("pip", "setuptools", "wheel") if name in packages]
    install = f"{interpreter.executable} -m pip install {' '.join(missing)}"
    return Requirement(
        "build tools",
        joined(found) or Phrase("none"),
        "pip and setuptools, and wheel if setuptools is older than 70.1",
        not missing,
        install,
    )


def _headers(interpreter: Interpreter) -> Requirement:
    series = ".".join(interpreter.python.split(".")[:2])
    return Requirement(
        "Python headers",
        str(interpreter.headers or "") or Phrase("no Python.h"),
        Phrase("Python.h of {python}", python=interpreter.python),
        interpreter.headers is not None,
        Phrase(
            "apt-get install python{series}-dev (dnf install python{series}-devel), or use conda",
            series=series,
        ),
    )


def _compiler(compiler: Compiler, torch: Torch | None, target: Target) -> Requirement:
    if not compiler.family:
        return Requirement(
            "C++ compiler",
            Phrase("{command}: {problem}", command=compiler.command, problem=compiler.problem),
            "GCC or Clang",
            met=False,
            mend="apt-get install g++ (dnf install gcc-c++), or name one in CXX",
        )
    lowest, too_new = torch.bounds.get(compiler.family, ((), None)) if torch is not None else ((), None)
    fits = compiler.version >= lowest and (too_new is None or compiler.version < too_new)
    found = Phrase(
        "{command} is {family} {version}",
        command=compiler.command,
        family=compiler.family,
        version=_dotted(compiler.version),
    )
    wanted = [Phrase("at least {version}", version=_dotted(lowest))] if lowest else []
    wanted += [Phrase("below {version}", version=_dotted(too_new))] if too_new else []
    for_whom = f"CUDA {torch.cuda}" if torch and torch.cuda and target.backend == "cuda" else "torch"
    return Requirement(
        "C++ compiler",
        Phrase("{found}; it fails on {problem}", found=found, problem=compiler.problem)
        if fits and compiler.problem
        else found,
        Phrase(
            "{family} {wanted} for {for_whom}, with OpenMP and torch's C++ standard",
            family=compiler.family,
            wanted=joined(wanted),
            for_whom=for_whom,
        ),
        fits and not compiler.problem,
        "install one of those and name it in CC and CXX, e.g. CC=gcc-13 CXX=g++-13",
    )


def _ninja(interpreter: Interpreter) -> Requirement:
    install = f"{interpreter.executable} -m pip install ninja"
    return Requirement(
        "ninja",
        interpreter.ninja or Phrase("not on the PATH"),
        "ninja, which compiles several files at once, and every op that is compiled at run time",
        interpreter.ninja is not None,
        install,
    )


def _disk(target: Target, ops: int, free_gib: float, folder: str) -> Requirement:
    each = _CPU_OP_GIB if target.backend == "cpu" else _CUDA_OP_GIB * max(1, len(target.architectures))
    needed = _SOURCE_GIB + ops * each
    return Requirement(
        "disk",
        Phrase("{free_gib:.1f} GiB free in {folder}", free_gib=free_gib, folder=folder),
        Phrase("{needed:.1f} GiB", needed=needed),
        free_gib >= needed,
        "free some, or point TMPDIR to a larger local disk",
    )


def _toolkit(torch: Torch, toolkit: Toolkit | None) -> Requirement:
    expected = Phrase(
        "nvcc {cuda}, as torch {torch} was built with (another minor version works too)",
        cuda=torch.cuda or "",
        torch=torch.version,
    )
    mend = Phrase(
        (
            "install the CUDA {cuda} toolkit, or set CUDA_HOME to it; the driver and torch's own "
            "packages contain no nvcc"
        ),
        cuda=torch.cuda or "",
    )
    if toolkit is None or not toolkit.release:
        where = (
            Phrase("no CUDA_HOME") if toolkit is None else Phrase("{nvcc} does not run", nvcc=toolkit.nvcc)
        )
        return Requirement("CUDA toolkit", where, expected, met=False, mend=mend)
    same = torch.cuda is not None and toolkit.release.split(".")[0] == torch.cuda.split(".")[0]
    return Requirement(
        "CUDA toolkit",
        Phrase("{nvcc} {release}", nvcc=toolkit.nvcc, release=toolkit.release),
        expected,
        same,
        mend,
    )


def _architectures(toolkit: Toolkit, target: Target) -> Requirement:
    unknown = [str(each) for each in target.architectures if each.machine_code not in toolkit.machine_codes]
    wanted = joined(target.architectures)
    return Requirement(
        "architectures",
        Phrase("{wanted} ({source})", wanted=wanted, source=target.source),
        Phrase(
            "those that nvcc {release} knows: {known}",
            release=toolkit.release,
            known=joined(sorted(toolkit.machine_codes)),
        ),
        not unknown,
        Phrase(
            "leave {names} out, or use a toolkit that knows it: 10.0 and 12.0 came with CUDA "
            "12.8, 10.3 and 12.1 with 12.9; CUDA 13 dropped what is older than 7.5",
            names=joined(unknown),
        ),
    )


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
