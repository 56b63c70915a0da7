"""Names that resolve, do not resolve, or whose resolver keeps silent."""

from __future__ import annotations

import threading
import time

import pytest

from platform_launch.hardware import names


def soon() -> float:
    return time.monotonic() + 5.0


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
    def never(_: str) -> tuple[str, ...]:
        threading.Event().wait(30)
        return ()

    began = time.monotonic()
    answer = names.Inquiry("node7", never).answer_by(began + 0.1)
    assert answer.late
    assert answer.failure == "the resolver does not answer"
    assert time.monotonic() - began < 1.0
