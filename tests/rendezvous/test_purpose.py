"""Launchers with different messages are recognised by the name of their protocol."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import make_dataclass
from enum import Enum
from typing import Any

import pytest

import platform_launch
from platform_launch.doctor.cluster.document import PURPOSE as DOCTOR
from platform_launch.rendezvous.authentication import Secret
from platform_launch.rendezvous.membership import ChangeKind
from platform_launch.rendezvous.messages import Message, encode
from platform_launch.rendezvous.participant import Participant, RejectedError
from platform_launch.rendezvous.protocol import Hello, Leave, RejectionKind, Welcome
from platform_launch.rendezvous.purpose import Purpose
from platform_launch.rendezvous.run.state import PURPOSE as RUN
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.live import PURPOSE, Health, Live, live, until

# The same name and another shape: what a launcher of another version has.
OTHER = Purpose(PURPOSE.name, (Health,))


class Colour(Enum):
    RED = "red"


class MoreColours(Enum):
    RED = "red"
    BLUE = "blue"


def _purpose(**shape: Any) -> Purpose:
    """Return a purpose with one message, and unregister it afterwards."""
    kind = make_dataclass("Changing", shape.items(), bases=(Message,), frozen=True)
    del Message.kinds["Changing"]
    return Purpose("changing", (kind,))


def _many(kind: type) -> Any:
    return Mapping.__class_getitem__((str, kind))  # type: ignore[attr-defined]


def _inner(**shape: Any) -> type:
    return make_dataclass("Inner", shape.items())


@pytest.mark.parametrize(
    "other",
    [
        {"a": int},
        {"a": int, "b": str},
        {"a": int, "b": str | None, "c": str},
        {"a": int, "other": str | None},
        {"a": float, "b": str | None},
        {"a": tuple[int, ...], "b": str | None},
        {"a": Mapping[int, int], "b": str | None},
        {"a": Colour, "b": str | None},
    ],
)
def test_added_removed_renamed_or_retyped_field_changes_the_protocol(other: dict[str, Any]) -> None:
    before = _purpose(a=int, b=str | None)
    assert before.protocol != _purpose(**other).protocol
    assert before.protocol == _purpose(b=str | None, a=int).protocol  # fields are known by their names


def test_nested_types_are_part_of_a_messages_shape() -> None:
    for one, other in (
        (Colour, MoreColours),
        (tuple[Colour, ...], tuple[MoreColours, ...]),
        (_inner(a=int), _inner(a=str)),
        (_many(_inner(a=int)), _many(_inner(a=str))),
    ):
        assert _purpose(a=one).protocol != _purpose(a=other).protocol
        assert _purpose(a=one).protocol == _purpose(a=one).protocol


def test_each_purpose_has_its_own_protocol_equal_in_every_process() -> None:
    assert len({RUN.protocol, DOCTOR.protocol, PURPOSE.protocol}) == 3
    found = subprocess.run(
        [
            *(sys.executable, "-c"),
            "from platform_launch.rendezvous.run.state import PURPOSE; print(PURPOSE.protocol)",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert found.stdout.strip() == RUN.protocol


def test_protocol_covers_every_message() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        foreign = Leave()
        for send in (node.publish, rendezvous.coordinator.publish, lambda one: node.query(one, limit_s=1.0)):
            with pytest.raises(TypeError, match="Leave is none of the messages of purpose 'test'"):
                send(foreign)


def test_messages_between_launcher_versions_never_change() -> None:
    """A future launcher must read this, and today's must read what a future one writes."""
    said = encode(
        Hello("a1b2c3", "0.1.0", "run", 3, "gpu-3 (10.0.0.3)", "job-7", "mark", "0" * 32, sealed=True)
    )
    assert said == (
        b'["Hello",{"protocol":"a1b2c3","version":"0.1.0","purpose":"run","node_rank":3,'
        b'"place":"gpu-3 (10.0.0.3)","job_id":"job-7","mark":"mark",'
        b'"nonce":"00000000000000000000000000000000","sealed":true,"peeks":false,"job":""}]'
    )
    answered = encode(Welcome("a1b2c3", "0.1.0", "run", "id", "gpu-0", None, "mark", "1" * 32, 2, "round"))
    assert answered == (
        b'["Welcome",{"protocol":"a1b2c3","version":"0.1.0","purpose":"run","identity":"id",'
        b'"place":"gpu-0","job_id":null,"mark":"mark","nonce":"11111111111111111111111111111111",'
        b'"nnodes":2,"round":"round","proof":"","job":""}]'
    )


def _told(node: Participant) -> str:
    with pytest.raises(RejectedError) as no:
        node.join()
    assert no.value.rejection.kind is RejectionKind.OTHER_PROTOCOL
    return str(no.value)


def _rejected(rendezvous: Live) -> list[tuple[RejectionKind, int, str]]:
    found = [change.rejection for change in rendezvous.changes if change.kind is ChangeKind.REJECTED]
    return [(one.kind, one.node_rank, one.place) for one in found if one is not None]


@pytest.mark.parametrize("secret", [None, Secret("a secret of the whole job")])
def test_both_sides_name_the_node_with_another_protocol(secret: Secret | None) -> None:
    with live(2, secret=secret) as rendezvous:
        node = rendezvous.participant(1, host="gn7", purpose=OTHER)
        version = platform_launch.__version__
        both = (
            f"version {version} (protocol {OTHER.protocol}) on node 1 (gn7 (10.0.0.1)), "
            f"version {version} (protocol {PURPOSE.protocol}) on node 0 (gpu-0 (10.0.0.0))"
        )
        assert both in _told(node)
        until(lambda: bool(_rejected(rendezvous)))
        assert both in rendezvous.warnings[0]
        assert "one image" in rendezvous.warnings[0]
        assert _rejected(rendezvous) == [(RejectionKind.OTHER_PROTOCOL, 1, "gn7 (10.0.0.1)")]
        for _ in range(3):  # it tries again, for some seconds
            _told(rendezvous.participant(1, host="gn7", purpose=OTHER))
        again = rendezvous.joined(1, host="gn7")
        assert again.membership is not None
        assert len(rendezvous.warnings) == 1


def test_stranger_cannot_evict_a_node_with_a_hello() -> None:
    with live(2) as rendezvous:
        node = rendezvous.joined(1)
        for _ in range(3):
            _told(rendezvous.participant(1, host="nowhere", purpose=OTHER))
        node.publish(Health(7))
        until(lambda: rendezvous.coordinator.values(Health) == {1: Health(7)}, node)
        assert rendezvous.coordinator.membership.ranks[1].node.host == "gpu-1"


def test_hello_without_the_secret_is_refused_with_the_reason() -> None:
    with live(2, secret=Secret("a secret of the whole job")) as rendezvous:
        with pytest.raises(RejectedError):
            rendezvous.participant(1, secret=None, purpose=OTHER).join()
        until(lambda: bool(_rejected(rendezvous)))
        assert [kind for kind, _, _ in _rejected(rendezvous)] == [RejectionKind.NO_SECRET]


def test_newer_version_of_another_job_is_another_job() -> None:
    with live(2) as rendezvous, pytest.raises(RejectedError, match="belongs to job 'job-8'"):
        rendezvous.participant(1, purpose=OTHER, job_id="job-8")
