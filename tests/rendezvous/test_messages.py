"""What is read from the network is a message of the expected kind, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import pytest

from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.text import Phrase, escaped


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...]


@dataclass(frozen=True)
class Sample(Message):
    number: int
    share: float
    good: bool
    colour: Colour
    inner: Inner
    text: str | None = None
    by_rank: Mapping[int, str] = field(default_factory=dict)
    any_message: Message | None = None


@dataclass(frozen=True)
class Other(Message):
    pass


GOOD = Sample(3, 0.5, True, Colour.RED, Inner(("a", "ü")), "tab\tbed", {-1: "x", 7: "y"}, Other())


def changed(**changes: object) -> bytes:
    kind, fields = json.loads(encode(GOOD))
    return json.dumps([kind, {**fields, **changes}]).encode()


def test_message_is_decoded_unchanged() -> None:
    assert decode(encode(GOOD), Sample) == GOOD
    assert decode(encode(GOOD), Message) == GOOD
    assert b"\n" not in encode(GOOD)


def test_phrase_is_decoded_with_template_and_values() -> None:
    inner = Phrase("{number} errors", number=3)
    text = Phrase("{where}: {what} at {clock:.0f} MHz", where="GPU 0", what=inner, clock=1200.4)
    arrived = decode(encode(replace(GOOD, text=text)), Sample).text
    assert isinstance(arrived, Phrase)
    assert arrived == "GPU 0: 3 errors at 1200 MHz"
    assert (arrived.template, arrived.values) == (text.template, text.values)
    assert decode(encode(replace(GOOD, text=Phrase("mode {mode:04o}", mode=8))), Sample).text == "mode 0010"


@pytest.mark.parametrize(
    "phrase",
    [
        {"words": "{a.__class__}", "values": {"a": "x"}},
        {"words": "{a[0]}", "values": {"a": "x"}},
        {"words": "{a:99999999}", "values": {"a": 1}},
        {"words": "{a} {b}", "values": {"a": "x"}},
        {"words": "{a:.0f}", "values": {"a": "text"}},
        {"words": "{", "values": {}},
        {"words": ["{a}"], "values": {"a": 1}},
    ],
)
def test_phrase_with_missing_values_is_refused(phrase: dict[str, object]) -> None:
    with pytest.raises(InvalidMessageError, match=r"Sample\.text"):
        decode(changed(text=phrase), Sample)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"number": []}, "Sample.number: expected a whole number, found []"),
        ({"number": True}, "expected a whole number"),
        ({"number": 2**70}, "expected a whole number"),
        ({"number": 1.5}, "expected a whole number"),
        ({"share": "0.5"}, "Sample.share: expected a number"),
        ({"share": float("nan")}, "expected a number"),
        ({"share": float("inf")}, "expected a number"),
        ({"good": 1}, "Sample.good: expected true or false"),
        ({"colour": "blue"}, "Sample.colour: expected one of red, found 'blue'"),
        ({"colour": {}}, "expected one of red"),
        ({"inner": {"names": "abc"}}, "Sample.inner.names: expected a list"),
        ({"inner": {}}, "Sample.inner: expected the fields names"),
        ({"inner": None}, "Sample.inner: expected an object"),
        ({"text": 5}, "Sample.text: expected a text"),
        ({"by_rank": {"one": "x"}}, "expected whole numbers as names"),
        ({"by_rank": {"9" * 30: "x"}}, "expected whole numbers as names"),
        ({"by_rank": []}, "expected an object"),
        ({"any_message": ["Nothing", {}]}, "expected a Message"),
        ({"any_message": ["Message", {}]}, "expected a Message|fields"),
        ({"surprise": 1}, "Sample: expected the fields number"),
    ],
)
def test_field_of_another_type_is_named(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        decode(changed(**changes), Sample)
    assert any(part in str(refused.value) for part in expected.split("|"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'["Sample"]',
        b'["Other",{}]',
        b'[["Sample"],{}]',
        b'"\xff"',
        b"[" * 40_000,
    ],
)
def test_other_input_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="expected a Sample"):
        decode(data, Sample)


def test_too_long_message_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="at most 65536 bytes"):
        decode(changed(text="x" * 70_000), Sample)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ü 你好 🙂 a\tb", "plain – ü 你好 🙂 a\tb"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("one\ntwo\r\n", r"one\ntwo\r\n"),
        ("\x9b2J\x7f\x00", r"\x9b2J\x7f\x00"),
        ("\u202eevil\u2066\u2028", r"\u202eevil\u2066\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_in_texts_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert decode(changed(text=text), Sample).text == shown
