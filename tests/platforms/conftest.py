"""A node of any platform: its variables, the files its platform mounted, its own name and address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.platforms import detect
from platform_launch.topology import Overrides

OWN_ADDRESS = "10.9.9.9"

Node = Callable[..., Environment]
Refusal = Callable[..., TopologyError]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Build the Environment of a node from variables (and files by their absolute path)."""

    def build(
        variables: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        hostname: str = "some-container",
        **more: str,
    ) -> Environment:
        for path, text in (files or {}).items():
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return Environment(
            {**(variables or {}), **more}, root=tmp_path, hostname=hostname, address=OWN_ADDRESS
        )

    return build


@pytest.fixture
def refusal() -> Refusal:
    """Return the error with which a node is refused; fail when it is not."""

    def detect_and_catch(environment: Environment, overrides: Overrides | None = None) -> TopologyError:
        with pytest.raises(TopologyError) as caught:
            detect(environment, overrides)
        return caught.value

    return detect_and_catch
