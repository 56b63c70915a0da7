"""DeepSpeed's source from a registry: what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.wheels.source import from_registry


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            "0.3.1.dev1, 0.3.1, 0.4.0, 0.17.0, 0.18.0, 0.19.7, 0.19.8",
            "(newest: 0.4.0, 0.17.0, 0.18.0, 0.19.7, 0.19.8)",
        ),
        ("none", "(from versions: none)"),
    ],
)
def test_of_the_versions_that_there_are_the_newest_are_named(tmp_path: Path, known: str, said: str) -> None:
    python = tmp_path / "python3"  # pip's answer, without a network
    answer = f"ERROR: Could not find a version that satisfies deepspeed==9 (from versions: {known})"
    python.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(InputError) as refused:
        from_registry("9", str(python), {"PATH": "/usr/bin:/bin"}, tmp_path)
    assert refused.value.message.endswith(f"satisfies deepspeed==9 {said}")
