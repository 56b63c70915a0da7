"""Python packages of this interpreter, located without importing them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from platform_launch.values import dataclass

# Modules that a file of the same name hides: not built-in ones, and not those that the interpreter loads
# first.
_PYTHONS_OWN = (
    sys.stdlib_module_names
    - set(sys.builtin_module_names)
    - {"abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat"}
)


@dataclass(frozen=True)
class Module:
    """Where a module would be imported from.

    ``origin`` is None if nothing is found, and for a plain folder of that name, such as a project's own
    ``deepspeed/``, which imports as an empty namespace and fails late.
    """

    name: str
    origin: Path | None
    namespace: tuple[Path, ...] = ()


@dataclass(frozen=True)
class TorchBuild:
    """What torch was built for. ``cuda``, ``hip`` and ``xpu`` are versions, None without them."""

    version: str
    cuda: str | None
    hip: str | None
    xpu: str | None = None


def find(names: Iterable[str]) -> dict[str, Module]:
    """Locate top-level modules."""
    return {name: _find(name) for name in names}


def _find(name: str) -> Module:
    spec = find_spec(name)
    if spec is None:
        return Module(name, None)
    if spec.origin is None:
        return Module(name, None, tuple(Path(folder) for folder in spec.submodule_search_locations or ()))
    return Module(name, Path(spec.origin))


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed.

    Read from the names of their ``{name}-{version}.dist-info`` folders (packaging.python.org, "Recording
    installed projects"): importlib.metadata costs every start some 40 ms for the same answer. Like Python, it
    skips an entry of the path that cannot be read: PYTHONPATH may name a folder of root in the image.
    """
    wanted = {re.sub(r"[-_.]+", "-", name).lower(): name for name in names}
    found: dict[str, str] = {}
    for folder in sys.path:
        for entry in _entries(folder):
            if not entry.endswith(".dist-info"):
                continue
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            spelling = wanted.get(re.sub(r"[-_.]+", "-", name).lower())
            if spelling is not None:
                found.setdefault(spelling, version)
    return {name: found[name] for name in wanted.values() if name in found}


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")  # noqa: PTH208 - names alone are wanted
    except OSError:  # not there, an archive, or not readable
        return []


def torch_build(torch: Module) -> TorchBuild | None:
    """Read torch's own record of its build, ``torch/version.py``; None if there is none."""
    if torch.origin is None:
        return None
    try:
        text = (torch.origin.parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=\n]*)?\s*=\s*['\"]([^'\"]*)['\"]", text, flags=re.MULTILINE))
    if "__version__" not in values:
        return None
    return TorchBuild(values["__version__"], values.get("cuda"), values.get("hip"), values.get("xpu"))


def user_site() -> Path | None:
    """Return the folder of packages below the user's home, None if this interpreter does not use it."""
    import site

    return Path(site.getusersitepackages()) if site.ENABLE_USER_SITE else None


def shadowing(folder: Path, names: Iterable[str]) -> frozenset[str]:
    """Return the files and packages of a folder that Python would import in place of a library.

    A library is one of ``names``, or any of Python's own. A folder without ``__init__.py`` does not count: an
    installed package wins over it.
    """
    libraries = {*names, *_PYTHONS_OWN}
    entries = _entries(str(folder))
    modules = {entry for entry in entries if entry.endswith(".py") and entry.removesuffix(".py") in libraries}
    folders = {f"{entry}/__init__.py" for entry in entries if entry in libraries}
    return frozenset(modules | {entry for entry in folders if (folder / entry).is_file()})
