"""Fits the weights by which `why` ranks claims, and reports how they do on logs that they were not fitted on.

The corpus (`tests/why/logs`) is split in two at random. The table is fitted on one half, by coordinate
search from zero, and asked about the other; then the same with the halves exchanged. For comparison: the
shipped table, and a plain rule ("the first cause, else the first consequence").

    python benchmarks/why_rank.py [--seed 1] [--show] [--format json]

`--show` prints the table that a fit on the whole corpus gives, beside the shipped one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from platform_launch.why.lines.opening import OpenedLog
from platform_launch.why.messages.signatures import catalogue
from platform_launch.why.rank.claims import Claim, claims_of
from platform_launch.why.rank.weights import WEIGHTS
from platform_launch.why.reading.reader import LogReader
from platform_launch.why.sources import LogSource, where_of_log
from tests.why.corpus import Case, cases

STEPS = (4.0, 2.0, 1.0, 0.5)
ROUNDS = 2
MARGIN = 0.25


@dataclass(frozen=True)
class Example:
    """The claims of one log, by their marks, and which of them are right."""

    name: str
    claims: tuple[Mapping[str, float], ...]
    right: frozenset[int]
    kinds: tuple[str, ...]

    def answer(self, weights: Mapping[str, float]) -> int:
        """Return the number of the claim that ranks highest."""
        scores = [sum(weights.get(mark, 0.0) * value for mark, value in one.items()) for one in self.claims]
        return scores.index(max(scores))

    def margin(self, weights: Mapping[str, float]) -> float:
        """Return by how much the best right claim outranks the best wrong one."""
        scores = [sum(weights.get(mark, 0.0) * value for mark, value in one.items()) for one in self.claims]
        right = max(scores[n] for n in self.right)
        return right - max((s for n, s in enumerate(scores) if n not in self.right), default=right - 9)


def example_of(case: Case) -> Example | None:
    """Read a log; None where its truth is no claim of its own (a job that finished)."""
    known = catalogue()
    with closing(OpenedLog(case.log)) as stream:
        source = LogSource(str(case.log), stream, where_of_log(case.log))
        nodes = [node for node in LogReader(source, known).read() if not node.finished]
    if not nodes:
        return None
    claims = claims_of(nodes, known)
    narrowed = known[case.cause].narrows if case.cause else ""
    right = {n for n, one in enumerate(claims) if is_right(one, case, narrowed)}
    kinds = tuple(one.event.role.value if one.event else "error" if one.error else "" for one in claims)
    return Example(case.name, tuple(one.marks for one in claims), frozenset(right), kinds) if right else None


def is_right(claim: Claim, case: Case, narrowed: str) -> bool:
    """Tell whether a claim is what a person who knows the log would name."""
    if claim.event is None:
        number = claim.error.number if claim.error is not None else None
        unknown = case.kind in ("unknown", "nothing") or case.cause == "program_error"
        return unknown and (number is not None) == (bool(case.line) and case.kind != "nothing")
    same = claim.event.signature.id in (case.cause, narrowed)
    return same and case.line in ("", str(claim.event.number))


def fitted(examples: Sequence[Example], names: Sequence[str], chance: random.Random) -> dict[str, float]:
    """Return weights, found by changing one at a time, in smaller and smaller steps."""
    weights = dict.fromkeys(names, 0.0)
    using = {name: [e for e in examples if any(name in one for one in e.claims)] for name in names}

    def worth(of: Sequence[Example]) -> float:
        margins = (example.margin(weights) for example in of)
        return sum((margin >= MARGIN) + 0.1 * max(-2.0, min(margin, 2.0)) for margin in margins)

    for step in STEPS:
        for _ in range(ROUNDS):
            for name in chance.sample(names, len(names)):
                before, kept = worth(using[name]), weights[name]
                for change in (step, -step):
                    weights[name] = kept + change
                    if worth(using[name]) > before + 1e-9:
                        break
                    weights[name] = kept
    return weights


def first_cause(example: Example) -> int:
    """Return the claim that the plain rule names."""
    for kind in ("cause", "consequence", "suspect", "error", ""):
        if kind in example.kinds:
            return example.kinds.index(kind)
    return 0


def main() -> None:
    """Fit and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the table of a fit on the whole corpus")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    examples = [found for case in cases() if (found := example_of(case)) is not None]
    names = sorted({mark for example in examples for one in example.claims for mark in one})
    chance.shuffle(examples)
    halves = examples[::2], examples[1::2]
    held_out = fitted_on = 0
    for fit_on, other in (halves, halves[::-1]):
        weights = fitted(fit_on, names, chance)
        fitted_on += sum(one.answer(weights) in one.right for one in fit_on)
        held_out += sum(one.answer(weights) in one.right for one in other)
    shipped = sum(one.answer(WEIGHTS) in one.right for one in examples)
    plain = sum(first_cause(one) in one.right for one in examples)
    result = {
        "logs": len(examples),
        "marks": len(names),
        "right_on_the_half_fitted": fitted_on,
        "right_on_the_half_held_out": held_out,
        "right_of_the_shipped_table": shipped,
        "right_of_the_first_cause": plain,
    }
    if options.format == "json":
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' '):<30}{value:>6}")
    if options.show:
        whole = fitted(examples, names, chance)
        for name in sorted(names, key=lambda one: -WEIGHTS.get(one, 0.0)):
            print(f"  {name:<42}{WEIGHTS.get(name, 0.0):>6.1f}{whole[name]:>7.1f}")


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    main()
