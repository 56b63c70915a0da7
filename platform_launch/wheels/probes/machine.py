"""Prints facts about an interpreter and its torch as one JSON object. Run as a script, never imported."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path


def main() -> None:
    """Print the object; what imported libraries print goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    headers = Path(sysconfig.get_path("include"))
    facts = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "python_tag": f"cp{sys.version_info[0]}{sys.version_info[1]}",
        "platform_tag": sysconfig.get_platform().replace("-", "_").replace(".", "_"),
        "libc": " ".join(platform.libc_ver()).strip(),
        "headers": str(headers) if (headers / "Python.h").is_file() else None,
        "ninja": shutil.which("ninja"),
        "packages": {name: version(name) for name in ("pip", "setuptools", "wheel", "deepspeed")},
        "torch": torch_facts(),
    }
    os.write(out, b"\n" + json.dumps(facts).encode())  # a line of its own, whatever was printed before
    os._exit(0)  # shutting torch down costs a third of its import


def version(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_facts() -> dict[str, object] | None:
    """Return what extensions must match, or why torch cannot be imported; None without torch."""
    if version("torch") is None:
        return None
    try:
        import torch
        from torch.utils import cpp_extension
    except Exception as error:  # a broken torch fails in many ways: OSError, ImportError, …
        return {"error": f"{type(error).__name__}: {error}"}
    cuda = torch.version.cuda
    return {
        "version": str(torch.__version__),
        "cuda": cuda,
        "hip": torch.version.hip,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "cuda_home": cpp_extension.CUDA_HOME,
        "compiler": cpp_extension.get_cxx_compiler(),  # type: ignore[no-untyped-call]
        "include_paths": cpp_extension.include_paths(),
        "gcc_minimum": cpp_extension.MINIMUM_GCC_VERSION,
        "clang_minimum": cpp_extension.MINIMUM_CLANG_VERSION,
        "gcc_for_cuda": cpp_extension.CUDA_GCC_VERSIONS,
        "clang_for_cuda": cpp_extension.CUDA_CLANG_VERSIONS,
    }


main()
