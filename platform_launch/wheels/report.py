"""The state of a node's DeepSpeed, as a value that can be written, judged and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platform_launch.errors import InputError, InstallationError
from platform_launch.text import Phrase, joined
from platform_launch.wheels.machine import Version, query_interpreter, run_probe, version_numbers

_WRITTEN_BY = Phrase(
    "write one on each node with: platform-launch wheel check --format json > $(hostname).json"
)


@dataclass(frozen=True)
class NodeReport:
    """One node's answer to ``wheel check``.

    ``ops`` holds for each op of the backend: ``compiled`` (in the wheel, and it loads), ``at run time``
    (would be compiled at first use), ``broken`` (in the wheel, does not load or will not be used) or
    ``unavailable``; ``problems`` holds DeepSpeed's reason for the latter two. ``gpus`` are names with their
    compute capability.
    """

    hostname: str
    python: str
    torch: str
    cuda: str | None
    deepspeed: str
    backend: str
    ops: Mapping[str, str]
    problems: Mapping[str, str]
    missing_requirements: Sequence[str]
    gpus: Sequence[str]

    def as_json(self) -> str:
        """Return the input of :func:`read`."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)


def query_node(
    python: str, env: Mapping[str, str], *, hostname: str, gpus: Sequence[str], timeout_s: float
) -> NodeReport:
    """Query the DeepSpeed of an interpreter, in a child process, for at most ``timeout_s``.

    Raises InstallationError if there is none, or if it cannot be imported.
    """
    node = query_interpreter(python, env)
    if node.torch is None or "deepspeed" not in node.packages:
        missing = Phrase("no deepspeed")
        if node.torch is None:
            missing = Phrase("no torch that works: {problem}", problem=node.torch_problem)
        raise InstallationError(
            Phrase("{python} has {missing}", python=python, missing=missing),
            "name the interpreter that trains with --python, or install what is missing",
        )
    facts = run_probe("deepspeed_installed.py", python, env, timeout_s=timeout_s)
    if "error" in facts:
        raise InstallationError(
            Phrase(
                "DeepSpeed {version} cannot be imported: {problem}",
                version=node.packages["deepspeed"],
                problem=facts["error"],
            ),
            Phrase("{python} -m pip check lists incompatible packages", python=python),
        )
    ops = {name: judge(op, facts, torch=node.torch.release) for name, op in facts["ops"].items()}
    return NodeReport(
        hostname=hostname,
        python=node.python,
        torch=node.torch.version,
        cuda=node.torch.cuda,
        deepspeed=facts["version"],
        backend=facts["backend"],
        ops={name: state for name, (state, _) in ops.items()},
        problems={name: problem for name, (_, problem) in ops.items() if problem},
        missing_requirements=facts["missing_requirements"],
        gpus=gpus,
    )


def judge(op: Mapping[str, Any], facts: Mapping[str, Any], *, torch: Version) -> tuple[str, str]:
    """Return the state of an op and its problem, as ``OpBuilder.load`` decides (op_builder/builder.py)."""
    problem: str = op["problem"]
    if not op["compiled"]:
        if not facts["compiler"] or not facts["ninja"]:
            problem = problem or Phrase("no C++ compiler or no ninja here")
        return ("unavailable" if problem else Phrase("at run time")), problem
    built_for = facts["built_for_backend"]
    if built_for != facts["backend"]:
        problem = Phrase(
            "compiled for the backend {built_for}, ignored under {backend}",
            built_for=built_for,
            backend=facts["backend"],
        )
    elif version_numbers(facts["built_for_torch"]) != torch:
        problem = Phrase(
            "compiled for torch {built_for}, refused under {torch}",
            built_for=facts["built_for_torch"],
            torch=".".join(map(str, torch)),
        )
    return ("broken" if problem else "compiled"), problem


def warnings(report: NodeReport) -> list[str]:
    """Return what will cost time on this node, or make a job fail."""
    found: list[str] = [
        Phrase(
            "op {name} is in the wheel, but cannot be used: {problem}",
            name=name,
            problem=report.problems[name],
        )
        for name in _in_state(report, "broken")
    ]
    if late := _in_state(report, Phrase("at run time")):
        found.append(
            Phrase(
                ("not compiled; a job that uses them would compile them for minutes on every node: {ops}"),
                ops=joined(late),
            )
        )
    if report.missing_requirements:
        found.append(
            Phrase(
                "DeepSpeed requires packages that are not installed: {requirements}",
                requirements=joined(report.missing_requirements),
            )
        )
    return found


def differences(first: NodeReport, second: NodeReport) -> list[str]:
    """Return the differences between two nodes that must not differ, one sentence each."""
    found: list[str] = [
        Phrase(
            "{what}: {first} has {one}, {second} has {other}",
            what=what,
            first=first.hostname,
            one=_shown(one),
            second=second.hostname,
            other=_shown(other),
        )
        for what, one, other in (
            ("DeepSpeed", first.deepspeed, second.deepspeed),
            ("torch", first.torch, second.torch),
            (Phrase("CUDA of torch"), first.cuda, second.cuda),
            ("Python", first.python, second.python),
            (Phrase("backend"), first.backend, second.backend),
            ("GPUs", tuple(sorted(set(first.gpus))), tuple(sorted(set(second.gpus)))),
        )
        if one != other
    ]
    for name in sorted({*first.ops, *second.ops}):
        one, other = (Phrase(node.ops.get(name, "unknown")) for node in (first, second))
        if one != other:
            found.append(
                Phrase(
                    "op {name}: {one} on {first}, {other} on {second}",
                    name=name,
                    one=one,
                    first=first.hostname,
                    other=other,
                    second=second.hostname,
                )
            )
    return found


def read(path: Path) -> NodeReport:
    """Read the output of ``wheel check --format json``. Raises InputError for anything else."""
    try:
        fields: Any = json.loads(path.read_text(encoding="utf-8"))
        return NodeReport(**{**fields, "ops": dict(fields["ops"])})
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror), _WRITTEN_BY
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            Phrase("{path} is not the output of wheel check: {problem}", path=path, problem=error),
            _WRITTEN_BY,
        ) from error


def _in_state(report: NodeReport, state: str) -> list[str]:
    return [name for name, found in report.ops.items() if found == state]


def _shown(value: object) -> str:
    text = joined(value) if isinstance(value, tuple) else str(value or "")
    return text or Phrase("none")
