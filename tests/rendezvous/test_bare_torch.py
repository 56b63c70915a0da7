"""A process that needs nothing of torch but its store."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
print(sum(name.partition(".")[0] == "torch" for name in sys.modules))
"""
# As a torch of another make might end on the way.
BROKEN = """
import os
from importlib import import_module
from platform_launch.rendezvous import bare_torch
def failing(name):
    if name == "torch._C._distributed_c10d":
        {how}
    return import_module(name)
bare_torch.import_module = failing
"""
FAILURES = ("raise ImportError(name)", "os.abort()", "os._exit(3)")


def run(code: str) -> list[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", ["", *FAILURES])
def test_a_store_is_served_without_the_rest_of_torch_or_else_with_all_of_it(how: str) -> None:
    import torch

    values, modules = run((BROKEN.format(how=how) if how else "") + USE)
    assert values == f"[b'value', None] {torch.version.__version__} {torch.version.cuda}"
    assert (int(modules) > 200) is bool(how)


def test_torch_goes_its_own_way_where_it_was_imported_before() -> None:
    whole = "import torch\nwhole = torch\n" + USE + "print(torch is whole, torch.ones(2).sum().item())"
    assert run(whole)[-1] == "True 2.0"
