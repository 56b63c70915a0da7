"""What some tests need of their host beyond Python and a C compiler. ``make test`` leaves these tests out.

    requires_chromium = Need("Chromium", lambda: "" if CHROMIUM else "needs chromium").mark

A test with such a mark is one of the labs (``pytest -m lab``). Where its host lacks something it is skipped,
and says why; that question is only asked when the test is about to run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from tests.lab.waiting import LIMIT_S


@dataclass(frozen=True)
class Need:
    """``name`` is what a person would install or be; ``lacking`` says why it cannot be had here, if so."""

    name: str
    lacking: Callable[[], str]

    @property
    def mark(self) -> pytest.MarkDecorator:
        """The mark of the tests that need it."""
        return pytest.mark.lab(self)


def needs_of(item: pytest.Item) -> list[Need]:
    """Return what a test needs of its host."""
    return [need for mark in item.iter_markers("lab") for need in mark.args]


@cache
def why_no_pid_namespace() -> str:
    """Return why no process can be made the first of a pid namespace here, empty when one can."""
    if shutil.which("unshare") is None:
        return "needs unshare (util-linux) to create a pid namespace"
    trial = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return f"needs the right to create a pid namespace: {done.stderr.strip()}" if done.returncode else ""


@cache
def why_no_index() -> str:
    """Return why pip cannot fetch a package here, empty when it can."""
    ask = [sys.executable, "-m", "pip", "index", "versions", "hatchling", "--disable-pip-version-check"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return f"needs a package index: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


requires_root = Need("root", lambda: "needs root" if os.geteuid() != 0 else "").mark
requires_index = Need("a package index", why_no_index).mark
# They only need much processor time, and `make test` must end within three minutes on two cores.
takes_long = Need("many seconds of processor time", lambda: "").mark
requires_pid_namespace = Need("a pid namespace", why_no_pid_namespace).mark
