"""The ops of a source tree for a backend, from DeepSpeed's own builders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from platform_launch.errors import UsageError, shown
from platform_launch.text import Phrase, joined
from platform_launch.wheels.architectures import arch_list
from platform_launch.wheels.machine import run_probe
from platform_launch.wheels.requirements import Requirement
from platform_launch.wheels.target import Target

# Advice that DeepSpeed's own message lacks: op → how to install what it needs.
_MEND = {
    "async_io": Phrase(
        "apt-get install libaio-dev (dnf install libaio-devel): for the kernel's asynchronous I/O"
    ),
    "gds": Phrase("install libaio-dev and GPUDirect Storage (libcufile-dev of the CUDA toolkit)"),
    "evoformer_attn": Phrase("set CUTLASS_PATH to a checkout of CUTLASS, or install nvidia-cutlass"),
    "deepspeed_ccl_comm": Phrase("install Intel oneCCL and source its setvars.sh"),
}


@dataclass(frozen=True)
class Op:
    """One op to build: ``variable`` enables it; ``problem`` is DeepSpeed's reason against it."""

    name: str
    variable: str
    problem: str

    def as_requirement(self) -> Requirement:
        """Return the op as a requirement of the build."""
        mend = _MEND.get(self.name, Phrase("fix that, or leave {name} out of --ops", name=self.name))
        return Requirement(
            Phrase("op {name}", name=self.name),
            self.problem or Phrase("can be compiled"),
            "all that DeepSpeed needs to compile it",
            not self.problem,
            mend,
        )


def parse_names(text: str) -> tuple[str, ...]:
    """Read ``cpu_adam,utils``. Raises UsageError for an invalid name."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    wrong = [name for name in names if not re.fullmatch(r"[a-z][a-z0-9_]*", name)]
    if wrong or not names:
        raise UsageError(
            Phrase(
                "--ops {text}: {word} is not an op: expected names such as cpu_adam,utils,async_io",
                text=shown(text),
                word=shown(wrong[0]) if wrong else Phrase("nothing"),
            ),
        )
    return names


def find(
    names: Sequence[str], source: Path, target: Target, python: str, env: Mapping[str, str]
) -> tuple[list[Op], list[str]]:
    """Return the ops to build, and those that only other backends have, which cannot be built here.

    Raises UsageError for a name that no backend of this source tree knows.
    """
    elsewhere = names_in_source(source)
    variables = build_variables(target, env)
    facts = run_probe("ops.py", python, variables, str(source), *names)
    known, answers = facts["known"], facts["asked"]
    unknown = [name for name in names if name not in known and name not in elsewhere]
    if unknown:
        raise UsageError(
            Phrase(
                "this DeepSpeed has no op {names}: its {backend} backend has {known}",
                names=joined(unknown),
                backend=target.backend,
                known=joined(known),
            ),
            "correct --ops; the available ops differ between versions of DeepSpeed",
        )
    ops = [Op(name, answer["variable"], answer["problem"]) for name, answer in answers.items()]
    return ops, [name for name in names if name not in known]


def names_in_source(source: Path) -> frozenset[str]:
    """Return the ops of every backend, read from the builders' source."""
    files = (source / "op_builder").rglob("*.py")
    return frozenset(
        name
        for file in files
        for name in re.findall(r'^ +NAME = "(\w+)"', file.read_text(encoding="utf-8", errors="replace"), re.M)
    )


def build_variables(target: Target, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell DeepSpeed's setup.py the target."""
    variables = {**env, "DS_ACCELERATOR": target.backend}
    if target.backend == "cuda":
        variables["TORCH_CUDA_ARCH_LIST"] = arch_list(target.architectures)
    return variables
