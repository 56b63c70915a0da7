"""How to install what is missing names the Python that misses it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from platform_launch import extras


def test_packages_are_installed_into_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python")
    assert extras.pip_install("ninja>=1") == "'/opt/my env/bin/python' -m pip install 'ninja>=1'"


def test_an_extra_is_installed_by_name_or_from_the_checkout_that_pip_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    monkeypatch.setattr(extras, "project_root", lambda: Path("/work/checkout"))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: name)
    assert extras.install_extra("train") == "/opt/venv/bin/python -m pip install 'platform-launch[train]'"
    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert extras.install_extra("train") == "/opt/venv/bin/python -m pip install '/work/checkout[train]'"
