"""DeepSpeed's source tree: from the registry, or a copy of the user's."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from platform_launch.errors import InputError, UsageError, shown
from platform_launch.supervise import Command, capture
from platform_launch.text import Phrase
from platform_launch.wheels.machine import environment_for

# pip queries the index, downloads 2 MB and runs setup.py once, which imports torch.
_DOWNLOAD_LIMIT_S = 600.0
_VERSIONS = 5
# Leftovers of an earlier build: setuptools would put its ops into this wheel too.
_LEFTOVERS = ("build", "dist", "*.egg-info", "__pycache__", ".git", "*.so")


def check(version: str | None, source: Path | None) -> None:
    """Raise UsageError for flags that name no source, InputError for a folder that is no source tree."""
    if version is not None and source is not None:
        raise UsageError("--version and --source exclude each other", "a checkout has its own version")
    if version is not None and not re.fullmatch(r"[0-9]+(\.[0-9]+)*[A-Za-z0-9.+]*", version):
        raise UsageError(
            Phrase(
                "--version {version} is not a version of DeepSpeed: expected e.g. 0.19.8",
                version=shown(version),
            ),
            "leave it out for the installed version, or use --source for a checkout",
        )
    if source is not None and not ((source / "op_builder").is_dir() and (source / "setup.py").is_file()):
        raise InputError(
            Phrase(
                "--source {source} is not a DeepSpeed source tree: expected setup.py and op_builder/ in it",
                source=source,
            ),
            "use the root of a checkout of https://github.com/deepspeedai/DeepSpeed",
        )


def from_registry(version: str | None, python: str, env: Mapping[str, str], folder: Path) -> Path:
    """Download DeepSpeed's source package with pip and unpack it in ``folder``; return the tree's root.

    None is the newest version. Raises InputError if pip cannot get it.
    """
    argv = (
        *(python, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", "deepspeed"),
        *("--disable-pip-version-check", "--no-input", "--dest", str(folder)),
        "deepspeed" if version is None else f"deepspeed=={version}",
    )
    # For its metadata only: the CUDA backend would need nvcc here already.
    variables = {**environment_for(python, without_build_variables(env)), "DS_ACCELERATOR": "cpu"}
    answer = capture(Command(argv, variables, cwd=folder), timeout_s=_DOWNLOAD_LIMIT_S)
    packages = list(folder.glob("*.tar.gz"))
    if answer.exit_code != 0 or not packages:
        lines = [line for line in answer.stderr.splitlines() if line.startswith("ERROR")]
        reason = (
            lines[0].removeprefix("ERROR: ")
            if lines
            else Phrase("pip exited with {code}", code=answer.exit_code)
        )
        raise InputError(
            Phrase(
                "DeepSpeed {version} could not be downloaded from the package registry: {reason}",
                version=version or Phrase("(newest)"),
                reason=_newest(reason),
            ),
            ("check the version and the connection to the registry, or pass a source tree with --source"),
        )
    with tarfile.open(packages[0]) as archive:
        # Absent in the first releases of Python 3.10 and 3.11.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)  # noqa: S202 - filtered, and its setup.py runs next anyway
    return folder / packages[0].name.removesuffix(".tar.gz")


def _newest(reason: str) -> str:
    """Return the newest of the versions that pip lists, from old to new."""
    words, found, versions = reason.partition("(from versions: ")
    known = versions.removesuffix(")").split(", ")
    return f"{words}(newest: {', '.join(known[-_VERSIONS:])})" if found and len(known) > _VERSIONS else reason


def copy_of(source: Path, folder: Path) -> Path:
    """Copy a source tree without leftovers of earlier builds; return the copy's root."""
    copy = folder / "deepspeed-source"
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*_LEFTOVERS))
    return copy


def without_build_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that choose ops: ``--ops`` decides which are built."""
    return {name: value for name, value in env.items() if not is_build_variable(name)}


def is_build_variable(name: str) -> bool:
    """Return whether a variable turns ops on or off, or is DS_BUILD_STRING, the suffix of the version."""
    return name.startswith("DS_BUILD_") and name != "DS_BUILD_STRING"
