"""How a node's end is told to the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from platform_launch.console import languages
from platform_launch.launch.node_ending import of_hang
from platform_launch.observe.hang import Culprit, FindingKind, HangFinding
from platform_launch.observe.monitor import HangReport
from platform_launch.rendezvous.fingerprint import Fingerprint
from platform_launch.sentences import sentence

NODE = Fingerprint(0, 2, "gn6", ("10.0.0.6",), "one", None)


def told(*waiting: str) -> tuple[str, ...]:
    culprit = Culprit(3, 1, "gn7", 812, "", "naps", sentence("naps"), False, ("main (train.py:7)",))
    wait = tuple(sentence(code, numbers=["0-2"], last="5") for code in waiting)
    cause = of_hang(NODE, HangReport(300.0, HangFinding(FindingKind.HANG, (culprit,), wait, (), (3,)))).cause
    assert cause is not None
    return cause.lines


@pytest.fixture
def in_chinese() -> Iterator[None]:
    languages.choose("zh")
    yield
    languages._chosen.clear()


def test_a_hang_is_told_with_who_is_stuck_and_where() -> None:
    assert told("ranks-and") == (
        "rank 3 (node 1, gn7, pid 812) sleeps",
        "  ranks 0-2 and 5",
        "  rank 3:   main (train.py:7)",
    )


@pytest.mark.usefixtures("in_chinese")
def test_a_hang_is_told_in_the_language_of_the_launch() -> None:
    assert told("ranks-and") == (
        "rank 3（节点 1、gn7、pid 812）：在睡眠（sleep）",
        "  rank 0-2、5",
        "  rank 3:   main (train.py:7)",
    )
