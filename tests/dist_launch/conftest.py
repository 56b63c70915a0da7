"""Clusters that wait, for the tests of dist-launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dist_launch import lab
from tests.dist_launch.lab import Node
from tests.lab.netns import hosts


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Four hosts that wait, shared by the tests of a module."""
    with hosts(4) as made:
        nodes = lab.make(made, tmp_path_factory.mktemp("cluster"))
        with lab.waiting(nodes):
            yield nodes


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Node]]:
    """Two hosts where nothing runs yet."""
    with lab.idle(2, tmp_path) as (nodes, _):
        yield nodes
