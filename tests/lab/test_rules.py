"""What every test keeps, so that it passes on a busy machine and tells what it needs (CONTRIBUTING)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("*.py"))
WORDS = re.compile(r"\b(?:monotonic|perf_counter|process_time|time)\(|\btimeout\b|\bmark\.lab\b")
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}


Nodes = Sequence[ast.AST]


def nodes_of(code: str) -> Nodes:
    """What these tests ask about, of a file's text."""
    wanted = (ast.Assert, ast.keyword, ast.BinOp, ast.Attribute)
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, wanted)]


@cache
def parsed(file: Path) -> Nodes:
    """What these tests ask about, of a file."""
    code = file.read_text()
    return nodes_of(code) if WORDS.search(code) else ()


def called(node: ast.AST) -> set[str]:
    """The names of the functions that an expression calls, without what they are attributes of."""
    functions = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
    return {function.attr for function in functions if isinstance(function, ast.Attribute)}


def durations_limited(found: Nodes) -> Iterator[int]:
    """Yield the lines that assert a difference of clocks to be less than something."""
    asserted = (node.test for node in found if isinstance(node, ast.Assert))
    for node in (part for test in asserted for part in ast.walk(test)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for left, sign, right in zip(sides, node.ops, sides[1:], strict=False):
            less = {ast.Lt: left, ast.LtE: left, ast.Gt: right, ast.GtE: right}.get(type(sign))
            if isinstance(less, ast.BinOp) and isinstance(less.op, ast.Sub) and CLOCKS & called(less):
                yield node.lineno


def limits_of_its_own(found: Nodes) -> Iterator[int]:
    """Yield the lines that end a wait after some number of seconds, but for those that mean it to end so."""
    for node in found:
        number: ast.AST | None = None
        if isinstance(node, ast.keyword) and node.arg == "timeout":
            number = node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and CLOCKS & called(node.left):
            number = node.right
        if isinstance(number, ast.Constant) and isinstance(number.value, int | float) and number.value > 3:
            yield number.lineno


def marks(found: Nodes) -> Iterator[tuple[int, str]]:
    """Yield ``pytest.mark`` by line."""
    for node in found:
        if isinstance(node, ast.Attribute) and getattr(node.value, "attr", "") == "mark":
            yield node.lineno, node.attr


@pytest.mark.parametrize("code", ["assert time.monotonic() - began < 5", "assert 5 > clock.time() - began"])
def test_a_limited_duration_is_seen(code: str) -> None:
    assert list(durations_limited(nodes_of(code))) == [1]


@pytest.mark.parametrize("code", ["assert time.monotonic() < deadline", "assert time.monotonic() - a >= 1"])
def test_an_end_to_a_wait_and_a_pause_that_must_be_kept_are_none(code: str) -> None:
    assert list(durations_limited(nodes_of(code))) == []


def test_no_test_asserts_that_work_is_fast() -> None:
    """Count what is done (tests/lab/effects.py), or compare with a peer in benchmarks/."""
    found = [f"{file}:{line}" for file in FILES for line in durations_limited(parsed(file))]
    assert found == []


@pytest.mark.parametrize("code", ["run(argv, timeout=60)", "deadline = time.monotonic() + 20"])
def test_a_limit_of_its_own_is_seen(code: str) -> None:
    assert list(limits_of_its_own(nodes_of(code))) == [1]


def test_what_ends_a_wait_in_vain_is_the_limit_that_all_share() -> None:
    """Any number that looks generous is too short for some busy machine: ``LIMIT_S`` of waiting.py."""
    found = [f"{file}:{line}" for file in FILES for line in limits_of_its_own(parsed(file))]
    assert found == []


def test_what_a_host_lacks_is_said_by_a_need() -> None:
    """A bare ``lab`` does not say what it needs; a time limit of its own is too short for some machine."""
    found = [
        f"{file}:{line}: {name}"
        for file in FILES
        if file.parent.name != "lab"
        for line, name in marks(parsed(file))
        if name in ("lab", "timeout")
    ]
    assert found == []
