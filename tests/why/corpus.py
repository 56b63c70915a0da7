"""The logs of known truth in ``logs/``, and what ``why`` answers: read by the tests and by docs/generate.py.

A case is a file ``logs/NAME.log`` and a line in ``logs/truth.tsv``, whose head explains the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from platform_launch.files import yaml_values
from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.explaining import explain_file

LOGS = Path(__file__).parent / "logs"


@dataclass(frozen=True)
class Case:
    """A log, and what a person who knows it would say."""

    name: str
    kind: str
    cause: str
    place: str
    line: str
    code: str
    truth: str

    @property
    def log(self) -> Path:
        """The file."""
        return LOGS / f"{self.name}.log"

    def answer(self) -> Verdict:
        """Return what ``why`` says."""
        return _answer(self.log)

    def is_right(self, verdict: Verdict) -> bool:
        """Tell whether an answer names the true cause at the true place."""
        return (verdict.kind, verdict.cause or "", str(verdict.where)) == (self.kind, self.cause, self.place)


@cache
def _answer(log: Path) -> Verdict:
    return explain_file(log)


def cases() -> list[Case]:
    """Return all cases, in the order of their names."""
    lines = (LOGS / "truth.tsv").read_text(encoding="utf-8").splitlines()
    return [Case(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def examples(of: str) -> dict[str, list[str]]:
    """Return example lines of ``signatures`` or ``rules``, by id."""
    held: dict[str, list[str]] = yaml_values((LOGS.parent / "examples.yaml").read_bytes())[of]
    return held


def page() -> str:
    """Return the reference page: each case, what is true and what is answered."""
    rows, right = [], 0
    for case in cases():
        verdict = case.answer()
        right += case.is_right(verdict)
        answer = f"`{verdict.cause}`" if verdict.cause else verdict.kind
        place = f" on {verdict.where}" if str(verdict.where) else ""
        mark = "yes" if case.is_right(verdict) else "**no**"
        rows.append(f"| `{case.name}` | {case.truth} | {answer}{place} | {mark} |")
    return (
        "\n".join(
            [
                "# How right `why` is",
                "",
                f"`why` finds the right cause and place in {right} of {len(rows)} logs whose true cause is",
                "known. The logs are in `tests/why/logs/`. Some were recorded from real failures; the others",
                "are written in the formats of schedulers, launchers and libraries. The signatures were made",
                "with these logs at hand, so expect fewer right answers for others. To add one, add a file",
                "there and a line in `truth.tsv`. `python docs/generate.py` writes this page.",
                "",
                "| log | what happened | what `why` answers | right |",
                "|---|---|---|---|",
                *rows,
            ]
        )
        + "\n"
    )
