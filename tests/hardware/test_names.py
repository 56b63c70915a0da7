"""Names that resolve, do not resolve, or whose resolver keeps silent."""

from __future__ import annotations

import threading
import time

import pytest

from platform_launch.hardware import names
from tests.lab.waiting import LIMIT_S


def soon() -> float:
    return time.monotonic() + LIMIT_S


def test_an_address_is_its_own_name() -> None:
    assert names.addresses_of("127.0.0.1").answer_by(soon()).found == ("127.0.0.1",)


def test_localhost_has_a_name() -> None:
    assert names.names_of("127.0.0.1").answer_by(soon()).found != ()


@pytest.mark.parametrize("name", ["a" * 64, "no..name", "nul\0byte"])
def test_what_is_no_name_fails_with_a_reason(name: str) -> None:
    answer = names.addresses_of(name).answer_by(soon())
    assert answer.found == ()
    assert answer.failure
    assert not answer.late


def test_a_resolver_that_keeps_silent_is_not_waited_for() -> None:
    answered = threading.Event()

    def silent(_: str) -> tuple[str, ...]:
        answered.wait()
        return ()

    answer = names.ResolverInquiry("node7", silent).answer_by(time.monotonic() + 0.1)
    answered.set()  # only now: whoever had waited for it would wait still
    assert answer.late
    assert answer.failure == "the resolver does not answer"
