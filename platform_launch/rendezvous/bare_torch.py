"""Of torch only what the rendezvous needs: TCPStore and what the build says of itself.

``import torch`` takes some two seconds of a processor and 230 MiB, at the very moment when each rank of the
node imports it too. TCPStore lies in torch's extension module, loaded in a fraction of that; it wants
packages named ``torch`` and ``torch.distributed`` around it, and is content when there is nothing in them.

That this works is no promise of torch: what fails half-way in C++ ends the process, or cannot be loaded once
more. So a child process tries it first, once for each torch: an empty file in this user's folder of temporary
files says that this one, at this path and of this time, has been tried.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from platform_launch.errors import HardwareError
from platform_launch.hardware.storage import own_temporary_folder


def bare_torch() -> Any:
    """Return a module ``torch`` with ``version``, ``_C`` and ``distributed.TCPStore``, and nothing else.

    For a process that imports torch for nothing else. Raises ImportError where this torch does not allow it;
    nothing has been loaded then.
    """
    if not _works():
        raise ImportError("torch's extension module is not to be had alone")
    return _load()


def _works() -> bool:
    """Tell whether a child process could load it, now or before."""
    tried = _tried()
    if tried is not None and tried.exists():
        return True
    if not _child_can_load():
        return False
    if tried is not None:
        with suppress(OSError):
            tried.parent.mkdir(mode=0o700, exist_ok=True)
            tried.touch()
    return True


def _tried() -> Path | None:
    """Return the file that says that this torch works so; None where none can be trusted."""
    spec = find_spec("torch")
    try:
        folder, problem = own_temporary_folder()
        if problem or spec is None or spec.origin is None:
            return None
        library = Path(spec.origin).with_name("lib") / "libtorch_python.so"
        this = (sys.version, str(library), library.stat().st_mtime_ns)
    except (OSError, HardwareError):
        return None
    return folder / f"bare-torch-{hashlib.sha256(repr(this).encode()).hexdigest()[:16]}"


def _child_can_load() -> bool:
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _load()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _load() -> Any:
    spec = find_spec("torch")
    assert spec is not None
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__path__, distributed.__path__ = list(spec.submodule_search_locations or ()), []
    sys.modules |= {"torch": torch, "torch.distributed": distributed}
    # As torch/__init__.py does first: what the extension module needs of other libraries.
    ctypes.CDLL(str(Path(torch.__path__[0], "lib", "libtorch_global_deps.so")), mode=ctypes.RTLD_GLOBAL)
    with _no_numpy():
        core: Any = import_module("torch._C")
    core._c10d_init()
    store = import_module("torch._C._distributed_c10d").TCPStore
    vars(distributed).update(TCPStore=store, DistStoreError=core._DistStoreError)
    vars(torch).update(_C=core, version=import_module("torch.version"), distributed=distributed)
    return torch


@contextmanager
def _no_numpy() -> Iterator[None]:
    """Let numpy be absent where it was not imported before: torch loads it for tensors."""
    absent = "numpy" not in sys.modules
    if absent:
        sys.modules["numpy"] = None  # type: ignore[assignment]  # as Python has it: importing fails
    try:
        yield
    finally:
        if absent:
            del sys.modules["numpy"]
