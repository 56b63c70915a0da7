"""The weights by which claims are ranked: how much each mark speaks for the root cause.

A claim's score is the sum of the weights of its marks (``claims.py``); the highest wins.
``benchmarks/why_rank.py`` fits the table on half of the corpus and reports how many logs of the other half it
then gets right.
"""

from __future__ import annotations

from collections.abc import Mapping

WEIGHTS = {
    # What the line says about the failure, and how much it says.
    "cause": 5.5,
    "consequence": 3.0,
    "suspect": 1.5,
    "specific": 1.0,  # times 0 to 3
    "vague suspect": -5.0,
    "unknown exception": -1.5,
    # It only says that a process ended, or that others lost it.
    "envelope": -4.0,
    "only ends what was left": -9.0,
    # Whether it happened, and ended something.
    "mention": -5.0,
    "raised suspect": 0.5,
    "right above a traceback that is cut off": 8.0,
    "something ended": 3.0,
    "at an end": 1.0,
    "output below a suspect": -3.0,  # times 0 to 1
    # What explains what.
    "explains what others suffered": 6.5,
    "explains a cause": 11.5,
    "has its reason": -5.0,
    "explained cause": -4.5,
    "sequel": -9.5,
    "lacks what an ended program left": -4.0,
    # What came first, and which process it is from.
    "of a program that several ran": 3.0,
    "ended first": 2.5,  # times -1 for an event of another process
    "later cause": -3.0,
    "below a cancellation": -9.0,
    "of a node that follows": -8.5,
    # Lines that match no signature.
    "clear error": 1.5,
    "of a rank that did not suffer": 4.0,
    "beside what others suffered": -2.0,
    # Ends that schedulers report.
    "exit code of its own": 3.0,
    "others suffered soon": 2.0,
    "others suffered above": -2.5,
    "task suffered": -4.0,
    # The logs show next to nothing.
    "roll call incomplete": -3.0,
    "nothing": -3.5,
}


def score(marks: Mapping[str, float]) -> float:
    """Return the score of a claim."""
    return sum(WEIGHTS.get(mark, 0.0) * value for mark, value in marks.items())
