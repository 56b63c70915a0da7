"""The note in a wheel: what it was built for, and whether it fits a node."""

from __future__ import annotations

import ast
import base64
import dataclasses
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platform_launch import files
from platform_launch.errors import InputError, InstallationError
from platform_launch.text import Phrase, joined
from platform_launch.wheels.architectures import Capability, parse
from platform_launch.wheels.machine import Interpreter, version_numbers

_NAME = "platform_launch.json"


@dataclass(frozen=True)
class WheelNote:
    """What a wheel was built for and with.

    ``backend`` is DeepSpeed's accelerator name; ``architectures`` entries of TORCH_CUDA_ARCH_LIST;
    ``instructions`` the processor's instruction sets that ``-march=native`` could use (names of
    /proc/cpuinfo); ``built`` an ISO 8601 time in UTC.
    """

    wheel: str
    deepspeed: str
    ops: tuple[str, ...]
    backend: str
    torch: str
    cuda: str | None
    cxx11_abi: bool
    python_tag: str
    platform_tag: str
    libc: str
    architectures: tuple[str, ...]
    compiler: str
    nvcc: str | None
    instructions: tuple[str, ...]
    built: str


def embed(wheel: Path, note: WheelNote) -> None:
    """Write a note into its wheel, so that they stay together. Raises OSError.

    ``*.dist-info`` may contain files of any tool, each with its hash in RECORD (packaging.python.org, "Binary
    distribution format").
    """
    content = json.dumps(dataclasses.asdict(note), indent=2) + "\n"
    with zipfile.ZipFile(wheel) as archive:
        (record,) = _of_dist_info(archive, "RECORD")
        name = f"{record.removesuffix('RECORD')}{_NAME}"
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
        entry = f"{name},sha256={digest},{len(content.encode())}\n"
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as complete:
            for info in archive.infolist():
                if info.filename != record:
                    complete.writestr(info, archive.read(info))
            complete.writestr(name, content)
            complete.writestr(archive.getinfo(record), entry.encode() + archive.read(record))
    files.write_whole(wheel, whole.getvalue())


def read(wheel: Path) -> WheelNote:
    """Read the note of a wheel. Raises InputError if the wheel is missing, truncated, or has no note."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = _of_dist_info(archive, _NAME)
            text = archive.read(names[0]) if names else None
    except FileNotFoundError as error:
        raise InputError(
            Phrase("there is no wheel {wheel}", wheel=wheel), "use the path that `wheel build` printed"
        ) from error
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(
            Phrase("{wheel} cannot be read as a wheel: {problem}", wheel=wheel, problem=error),
            "it may have been cut short: copy it again from where it was built",
        ) from error
    if text is None:
        raise InputError(
            Phrase("{wheel} has no note of what it was built for", wheel=wheel),
            "only wheels of `platform-launch wheel build` do; install one from elsewhere with pip",
        )
    try:
        fields: Any = json.loads(text)
        for name in ("ops", "architectures", "instructions"):
            fields[name] = tuple(fields[name])
        return WheelNote(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            Phrase("the note in {wheel} cannot be read: {problem}", wheel=wheel, problem=error),
            "install it with the platform-launch that built it",
        ) from error


def _of_dist_info(archive: zipfile.ZipFile, name: str) -> list[str]:
    return [path for path in archive.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{re.escape(name)}", path)]


def read_content(wheel: Path) -> tuple[str, str, tuple[str, ...]]:
    """Return DeepSpeed's own record in a wheel: its version, its backend, and its ops.

    Raises InstallationError if ``git_version_info_installed.py`` is not there.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read("deepspeed/git_version_info_installed.py").decode()
        values = {
            statement.targets[0].id: ast.literal_eval(statement.value)
            for statement in ast.parse(text).body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
        ops = tuple(sorted(name for name, built in values["installed_ops"].items() if built))
        return values["version"], values["accelerator_name"], ops
    except (OSError, KeyError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        raise InstallationError(
            Phrase("{wheel} has no list of its ops: {problem!r}", wheel=wheel, problem=error),
            "build it again",
        ) from error


def mismatches(
    note: WheelNote, node: Interpreter, *, gpus: Sequence[Capability], instructions: frozenset[str]
) -> list[str]:
    """Return why a wheel would not work on a node, one sentence each; none if it fits."""
    found: list[str] = [
        Phrase(
            "{what}: the wheel is built for {wanted}, this node has {here}",
            what=what,
            wanted=wanted,
            here=here,
        )
        for what, wanted, here in (
            ("Python", note.python_tag, node.python_tag),
            (Phrase("platform"), note.platform_tag, node.platform_tag),
        )
        if wanted != here
    ]
    if version_numbers(node.libc.split(" ")[-1]) < version_numbers(note.libc.split(" ")[-1]):
        found.append(
            Phrase(
                "C library: built with {libc}, this node has the older {here}",
                libc=note.libc,
                here=node.libc,
            )
        )
    # ``-march=native`` may have used any of them: a missing one causes SIGILL in the middle of a job.
    if lacking := sorted(set(note.instructions) - instructions):
        found.append(
            Phrase(
                "processor: built for one that knows {instructions}; this one does not",
                instructions=joined(lacking),
            )
        )
    return found + _torch_mismatches(note, node) + _gpu_mismatches(note, gpus)


def _torch_mismatches(note: WheelNote, node: Interpreter) -> list[str]:
    torch = node.torch
    if torch is None:
        return [
            Phrase("torch: built for {torch}, here {problem}", torch=note.torch, problem=node.torch_problem)
        ]
    found: list[str] = []
    if torch.release != version_numbers(note.torch)[:2]:
        found.append(
            Phrase(
                "torch: built for {torch}, this node has {version}; DeepSpeed refuses its ops "
                "under another minor version",
                torch=note.torch,
                version=torch.version,
            )
        )
    if torch.cuda != note.cuda:
        found.append(
            Phrase(
                "torch's CUDA: built for {cuda}, this node has {here}",
                cuda=note.cuda or Phrase("none"),
                here=torch.cuda or Phrase("none"),
            )
        )
    if torch.cxx11_abi != note.cxx11_abi:
        found.append(
            Phrase(
                "torch's C++ ABI: the wheel and this node's torch use different ones (_GLIBCXX_USE_CXX11_ABI)"
            )
        )
    return found


def _gpu_mismatches(note: WheelNote, gpus: Sequence[Capability]) -> list[str]:
    if note.backend == "cpu":
        return (
            [Phrase("GPUs: built for the CPU backend, whose ops DeepSpeed ignores on a node with GPUs")]
            if gpus
            else []
        )
    built = parse(";".join(note.architectures))
    return [
        Phrase(
            "GPUs: built for {architectures}, which does not run on a GPU of {capability}",
            architectures=joined(note.architectures),
            capability=f"{major}.{minor}",
        )
        for major, minor in sorted(set(gpus))
        if not any(architecture.runs_on((major, minor)) for architecture in built)
    ]
