"""Prints which ops of the installed DeepSpeed are compiled, which load, and which could be compiled.

Prints one JSON object. Run as a script, never imported.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from importlib import metadata


def main() -> None:
    """Print the object; what DeepSpeed prints goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = {"missing_requirements": missing_requirements(), **deepspeed_facts()}
    except Exception as error:  # whatever stops the import is the finding
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(out, b"\n" + json.dumps(answer).encode())  # a line of its own, whatever was printed before
    os._exit(0)  # shutting torch down costs a third of its import


def deepspeed_facts() -> dict[str, object]:
    """Return the version, what the ops were compiled for, and the state of each op."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    info = importlib.import_module("deepspeed.git_version_info")

    backend = get_accelerator()._name
    return {
        "version": info.version,
        "backend": backend,
        "built_for_backend": getattr(
            info, "accelerator_name", backend
        ),  # older versions build for one backend only
        "built_for_torch": info.torch_info.get("version", "0.0"),
        "compiler": shutil.which(os.environ.get("CXX", "c++")),
        "ninja": shutil.which("ninja"),
        # A placeholder stands for an op that the backend lacks.
        "ops": {
            name: op_facts(builder, bool(info.installed_ops.get(name)))
            for name, builder in sorted(ALL_OPS.items())
            if not name.endswith("not_implemented")
        },
    }


def op_facts(builder: object, compiled: bool) -> dict[str, object]:
    """Import a compiled op, or check whether the op could be compiled; an empty problem means yes."""
    problem = ""
    warnings: list[str] = []
    builder.warning = warnings.append  # type: ignore[attr-defined]
    try:
        if compiled:
            importlib.import_module(builder.absolute_name())  # type: ignore[attr-defined]
        elif not builder.is_compatible(verbose=True):  # type: ignore[attr-defined]
            problem = "; ".join(warnings) or "DeepSpeed calls it incompatible with this machine"
    except Exception as error:  # undefined symbols, missing CUDA, anything
        problem = f"{type(error).__name__}: {error}"
    return {"compiled": compiled, "problem": problem}


def missing_requirements() -> list[str]:
    """Return what DeepSpeed requires and this interpreter lacks: a wheel installed with --no-deps."""
    from packaging.requirements import Requirement

    missing = []
    for line in metadata.requires("deepspeed") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            if requirement.specifier.contains(metadata.version(requirement.name), prereleases=True):
                continue
        except metadata.PackageNotFoundError:
            pass
        missing.append(f"{requirement.name}{requirement.specifier}")
    return missing


main()
