"""Sentences (``platform_launch/sentences.py``) as ProcGuard says them.

They are kept and sent as a code and values. :func:`english` says them for the API, tables and logs; the page
says them in other languages by its words (``sentence.CODE``).
"""

from __future__ import annotations

from platform_launch.observe.words import WORDS
from platform_launch.procguard.api.english import ENGLISH
from platform_launch.sentences import Sentence as Sentence
from platform_launch.sentences import SentenceRenderer as SentenceRenderer
from platform_launch.sentences import Value as Value
from platform_launch.sentences import listed as listed
from platform_launch.sentences import quoted as quoted
from platform_launch.sentences import sentence as sentence

_ENGLISH = SentenceRenderer({**WORDS, **ENGLISH})


def english(sentence: Sentence) -> str:
    """Say a sentence in English. Raises KeyError for one of another version."""
    return _ENGLISH.render(sentence)
