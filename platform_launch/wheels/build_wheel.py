"""From a request to the wheel; each check is printed as it is made."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch import files, hardware
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.environment import Environment
from platform_launch.errors import InputError, InstallationError, UsageError
from platform_launch.hardware import Hardware
from platform_launch.hardware.host import instructions
from platform_launch.project import git_revision
from platform_launch.text import Listed, Phrase, iso_utc, joined
from platform_launch.wheels import architectures, building, note, ops, requirements, source, target
from platform_launch.wheels.building import Build
from platform_launch.wheels.machine import (
    Compiler,
    Interpreter,
    Toolkit,
    Torch,
    query_compiler,
    query_interpreter,
    query_toolkit,
)
from platform_launch.wheels.note import WheelNote
from platform_launch.wheels.requirements import Requirement
from platform_launch.wheels.target import Target


@dataclass(frozen=True)
class WheelRequest:
    """The flags, see ``platform-launch wheel build --help``."""

    version: str | None
    source: Path | None
    ops: str
    arch: str
    jobs: int | None
    output: Path


@dataclass(frozen=True)
class BuildTools:
    """This machine and its tools."""

    interpreter: Interpreter
    torch: Torch
    compiler: Compiler
    toolkit: Toolkit | None
    hardware: Hardware


def build_wheel(request: WheelRequest, env: Environment, console: Console) -> Path:
    """Build the requested wheel and return its path. Raises a LaunchError that names what is missing."""
    # Checks that need no torch, whose import takes seconds.
    names = ops.parse_names(request.ops)
    wanted = None if request.arch == "auto" else architectures.parse(request.arch)
    source.check(request.version, request.source)
    with (
        _writable(request.output) as output,
        tempfile.TemporaryDirectory(prefix="platform_launch_wheel_", ignore_cleanup_errors=True) as name,
    ):
        tools = _examine(env)
        aim = target.choose(
            tools.torch,
            [gpu.compute_capability for gpu in tools.hardware.gpus.devices if gpu.compute_capability],
            wanted=wanted,
            arch_list=env.get("TORCH_CUDA_ARCH_LIST"),
            accelerator=env.get("DS_ACCELERATOR"),
        )
        _introduce(tools, aim, env, console)
        folder = Path(name)
        variables = {**env.inherited(), "TMPDIR": name}  # files of stopped processes are removed too
        _require(_machine_requirements(tools, aim, names, folder), console)
        tree, suffix = _source(request, tools.interpreter, variables, folder, console)
        found, elsewhere = ops.find(names, tree, aim, tools.interpreter.executable, variables)
        for absent in elsewhere:
            console.warn(
                Phrase(
                    "DeepSpeed's {backend} backend has no op {absent}: nothing to compile, left out",
                    backend=aim.backend,
                    absent=absent,
                )
            )
        _require([op.as_requirement() for op in found], console)
        if not found:
            raise UsageError(
                Phrase("--ops {ops} leaves nothing to compile", ops=request.ops), "name another op"
            )
        host = tools.hardware.host
        job = Build(
            python=tools.interpreter.executable,
            source=tree,
            into=folder / "wheel",
            target=aim,
            ops=found,
            jobs=request.jobs or requirements.default_jobs(aim.backend, host.cpus, host.memory_gib),
            suffix=suffix,
        )
        wheel = _build(job, variables, output, console)
        return _deliver(wheel, job, tools, output, console)


@contextmanager
def _writable(output: Path) -> Iterator[Path]:
    """Create the folder now, so that an hour of compiling does not end at a read-only disk.

    A folder that was created here and stays empty is removed again.
    """
    output = output.absolute()
    was_there = output.exists()
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise InputError(
            Phrase("--output {output} cannot be written: {problem}", output=output, problem=error.strerror),
            "choose another folder",
        ) from error
    try:
        yield output
    finally:
        with suppress(OSError):
            if not was_there:
                output.rmdir()


def _examine(env: Environment) -> BuildTools:
    interpreter = query_interpreter(sys.executable, env.inherited())
    if interpreter.torch is None:
        raise InstallationError(
            Phrase(
                "ops are compiled against torch, and {python} has none that works: {problem}",
                python=interpreter.executable,
                problem=interpreter.torch_problem,
            ),
            "install the torch that the nodes will train with, or run this with their interpreter",
        )
    return BuildTools(
        interpreter,
        interpreter.torch,
        query_compiler(interpreter, env.inherited()),
        query_toolkit(interpreter.torch, env.inherited()),
        hardware.detect(env),
    )


def _introduce(tools: BuildTools, aim: Target, env: Environment, console: Console) -> None:
    cuda = Phrase("CUDA {version}", version=tools.torch.cuda) if tools.torch.cuda else Phrase("no CUDA")
    console.info(
        Phrase(
            "torch {version} ({cuda}), Python {python}",
            version=tools.torch.version,
            cuda=cuda,
            python=tools.interpreter.python,
        )
    )
    for_what = joined(aim.architectures) or Phrase("no GPU code")
    console.info(
        Phrase(
            "for DeepSpeed's {backend} backend, {architectures}: {source}",
            backend=aim.backend,
            architectures=for_what,
            source=aim.source,
        )
    )
    if aim.warning:
        console.warn(aim.warning)
    if ignored := sorted(filter(source.is_build_variable, env)):
        console.warn(
            Phrase(
                "{names} in the environment is ignored: --ops decides what is compiled",
                names=joined(ignored),
            )
        )


def _machine_requirements(
    tools: BuildTools, aim: Target, names: Sequence[str], folder: Path
) -> list[Requirement]:
    return requirements.requirements(
        tools.interpreter,
        tools.compiler,
        tools.toolkit,
        aim,
        ops=names,
        free_gib=shutil.disk_usage(folder).free / 1024**3,
        folder=str(folder.parent),
    )


def _require(wanted: Sequence[Requirement], console: Console) -> None:
    """Print what was found for each requirement; raise InstallationError if one is not met."""
    for each in wanted:
        if each.met:
            console.success(Phrase("{name}: {found}", name=each.name, found=each.found))
        else:
            console.error(
                Phrase(
                    "{name}: {found}; expected {expected}",
                    name=each.name,
                    found=each.found,
                    expected=each.expected,
                )
            )
    unmet = [each for each in wanted if not each.met]
    if unmet:
        fixes = (Phrase("{name}: {mend}", name=each.name, mend=each.mend) for each in unmet)
        raise InstallationError(
            Phrase("a build here would fail: {names}", names=joined(each.name for each in unmet)),
            Listed(fixes, Listed.LINES),
        )


def _source(
    request: WheelRequest,
    interpreter: Interpreter,
    variables: Mapping[str, str],
    folder: Path,
    console: Console,
) -> tuple[Path, str]:
    """Return a writable source tree, and the suffix of the version."""
    if request.source is not None:
        is_checkout = (request.source / ".git").exists()
        revision = git_revision(request.source.absolute() / "setup.py") if is_checkout else None
        told = Phrase("source: {source}", source=request.source)
        if revision:
            told = Phrase("source: {source}, commit {revision}", source=request.source, revision=revision)
        console.info(told)
        return source.copy_of(request.source, folder), f"+{revision[:7]}" if revision else ""
    version = request.version or interpreter.packages.get("deepspeed", "").partition("+")[0] or None
    console.info(
        Phrase("source: DeepSpeed {version} from the package registry", version=version or Phrase("(newest)"))
    )
    return source.from_registry(version, interpreter.executable, variables, folder), ""


def _build(job: Build, variables: Mapping[str, str], output: Path, console: Console) -> Path:
    log_path = output / f"deepspeed-build-{time.strftime('%Y%m%d-%H%M%S')}.log"
    console.info(
        Phrase(
            "compiling {ops}, {jobs} at once; log: {log}",
            ops=joined(op.name for op in job.ops),
            jobs=job.jobs,
            log=log_path,
        )
    )
    began = time.monotonic()
    with console.changing_line(translate("preparing")) as show:
        wheel = building.run(
            job,
            variables,
            log_path,
            report=console.report,
            progress=lambda step: show(translate(step.describe(len(job.ops)))),
        )
    _, _, compiled = note.read_content(wheel)
    absent = {op.name for op in job.ops} - set(compiled)
    if absent:
        raise InstallationError(
            Phrase("DeepSpeed left {ops} out of the wheel without failing", ops=joined(sorted(absent))),
            Phrase("see why in {log}", log=log_path),
        )
    console.success(
        Phrase(
            "compiled {ops} in {took:.0f} s",
            ops=joined(compiled),
            took=time.monotonic() - began,
        )
    )
    return wheel


def _deliver(wheel: Path, job: Build, tools: BuildTools, output: Path, console: Console) -> Path:
    """Record in the wheel what it was built for, move it to the requested folder, and print the next step.

    Raises InputError if the disk is full there; the wheel is then kept elsewhere.
    """
    note.embed(wheel, _described(wheel, job, tools))
    delivered = output / wheel.name
    try:
        files.write_whole(delivered, wheel.read_bytes())
    except OSError as error:
        delivered.unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="platform_launch_wheel_"))
        shutil.move(wheel, folder)
        raise InputError(
            Phrase(
                "the wheel is built, but cannot be written to {output}: {problem}",
                output=output,
                problem=error.strerror,
            ),
            Phrase("it is in {folder}: free some space and move it", folder=folder),
        ) from error
    by_hand = shlex.join(("platform-launch", "wheel", "install", str(delivered)))
    console.info(Phrase("install it on each node: {command}", command=by_hand))
    console.info(
        Phrase(
            ("on all nodes of a Slurm job, if they share the folder: srun --ntasks-per-node=1 {command}"),
            command=by_hand,
        )
    )
    return delivered


def _described(wheel: Path, job: Build, tools: BuildTools) -> WheelNote:
    interpreter, compiler = tools.interpreter, tools.compiler
    toolkit = tools.toolkit if job.target.backend == "cuda" else None
    deepspeed, backend, ops = note.read_content(wheel)
    return WheelNote(
        wheel=wheel.name,
        deepspeed=deepspeed,
        ops=ops,
        backend=backend,
        torch=tools.torch.version,
        cuda=tools.torch.cuda,
        cxx11_abi=tools.torch.cxx11_abi,
        python_tag=interpreter.python_tag,
        platform_tag=interpreter.platform_tag,
        libc=interpreter.libc,
        architectures=tuple(map(str, job.target.architectures)),
        compiler=f"{compiler.family} {'.'.join(map(str, compiler.version))}",
        nvcc=toolkit.release if toolkit is not None else None,
        instructions=tuple(sorted(instructions())),
        built=iso_utc(),
    )
