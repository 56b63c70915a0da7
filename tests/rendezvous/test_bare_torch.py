"""A process that needs nothing of torch but its store."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S

# Serves a store from what was loaded, and says how many of torch's modules that took.
USE = """
import sys
from platform_launch.rendezvous.store import Store, load_torch
torch = load_torch(bare=True)
assert load_torch() is torch
served = Store.serve(0, limit_s=30)
other = Store.connect("127.0.0.1", served.port, limit_s=30)
other.write("key", b"value")
print(served.read(["key", "absent"]), torch.version.__version__, torch.version.cuda)
print(sum(name.partition(".")[0] in ("torch", "numpy") for name in sys.modules))
import numpy  # for whoever asks for it, it is there
"""
# As a torch of another make might end on the way.
BROKEN = """
import os
import runpy
from importlib import import_module
from platform_launch.rendezvous import bare_torch
def missing():
    raise ImportError
for fails in (missing, lambda: os._exit(3), os.abort):
    def failing(name):
        if name == "torch._C._distributed_c10d":
            fails()
        return import_module(name)
    bare_torch.import_module = failing
    try:
        bare_torch.bare_torch()
    except ImportError:
        print("refused")
"""

# What has been tried is remembered, and not tried again.
NO_MORE_TRIALS = """
import os
import runpy
def refused():
    raise AssertionError("another trial")
os.fork = refused
"""


def run(code: str, temporary: Path) -> list[str]:
    command = [sys.executable, "-c", code]
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def served() -> str:
    """What a store serves, and from which torch: read from its file, since importing it takes two seconds."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    return f"[b'value', None] {version['__version__']} {version['cuda']}"


def test_a_store_is_served_without_the_rest_of_torch(served: str, tmp_path: Path) -> None:
    values, modules = run(USE, tmp_path)
    assert values == served
    assert int(modules) <= 200
    assert len(list(tmp_path.glob("platform_launch_*/bare-torch-*"))) == 1
    assert run(NO_MORE_TRIALS + USE, tmp_path) == [values, modules]


@takes_long
def test_in_whatever_way_that_fails_a_store_is_served_with_all_of_torch(served: str, tmp_path: Path) -> None:
    *refused, values, modules = run(BROKEN + USE, tmp_path)
    assert refused == ["refused"] * 3
    assert values == served
    assert int(modules) > 200
    assert not list(tmp_path.glob("platform_launch_*/bare-torch-*"))


def test_what_somebody_else_may_have_put_there_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / f"platform_launch_{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    run(USE, tmp_path)
    assert list(folder.iterdir()) == []


def test_torch_goes_its_own_way_where_it_was_imported_before(tmp_path: Path) -> None:
    whole = "import torch\nwhole = torch\n" + USE + "print(torch is whole, torch.ones(2).sum().item())"
    assert run(whole, tmp_path)[-1] == "True 2.0"
