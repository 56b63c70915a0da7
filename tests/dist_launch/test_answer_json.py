"""Answers of agents and of the broker: what is a phrase there is one where it is read."""

from __future__ import annotations

import pytest

from platform_launch.dist_launch import answer_json
from platform_launch.text import Phrase, joined


def test_a_phrase_comes_back_with_its_words_and_values_however_deep() -> None:
    problem = Phrase("{path}: {problem}", path="/x", problem=Phrase("no answer within {limit:g} s", limit=5))
    read = answer_json.loads(answer_json.dumps({"rank": 1, "nodes": [{"problem": problem}], "count": None}))
    assert read == {"rank": 1, "nodes": [{"problem": "/x: no answer within 5 s"}], "count": None}
    found = read["nodes"][0]["problem"]
    assert (found.template, found.values["problem"].template) == (
        problem.template,
        "no answer within {limit:g} s",
    )


def test_a_list_of_phrases_stays_one() -> None:
    both = joined([Phrase("no answer within {limit:g} s", limit=5), "gn1"], "; ")
    read = answer_json.loads(answer_json.dumps({"problem": both}))["problem"]
    assert (read, read.template) == (both, both.template)
    assert [type(one) for one in read.values.values()] == [Phrase, str]


@pytest.mark.parametrize(("words", "values"), [('"{x.y}"', '{"x": 1}'), ("1", "{}"), ('"{x}"', "1")])
def test_what_only_looks_like_a_phrase_is_refused(words: str, values: str) -> None:
    with pytest.raises(ValueError, match="phrase"):
        answer_json.loads(f'{{"words": {words}, "values": {values}}}')
