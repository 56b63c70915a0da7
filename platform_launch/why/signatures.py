"""The signatures of known failures, read from ``signatures.yaml`` (whose head explains each field)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).with_name("signatures.yaml")


class Role(str, Enum):
    """What a message says about the failure; see the head of ``signatures.yaml``."""

    CAUSE = "cause"
    SUSPECT = "suspect"
    CONSEQUENCE = "consequence"
    SUMMARY = "summary"
    NOISE = "noise"


@dataclass(frozen=True)
class Signature:
    """One known failure."""

    id: str
    title: str
    role: Role
    meaning: str
    fix: str
    source: str
    specificity: int = 2
    patterns: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    explains: tuple[str, ...] = ()
    example: tuple[str, ...] = ()
    folded: str = ""
    raised: bool = False
    with_oom_kills: str = ""
    without_oom_kills: str = ""


class Catalogue:
    """All signatures; finds the one that a line shows."""

    def __init__(self, signatures: tuple[Signature, ...]) -> None:
        self.signatures = signatures
        self._by_id = {signature.id: signature for signature in signatures}
        self._by_exit_code = {code: s for s in signatures for code in s.exit_codes}
        known = [s for s in signatures if s.role is not Role.NOISE and s.patterns]
        # The best first, so that the first hit is the answer.
        known.sort(key=lambda s: -s.specificity)
        self._known = [(s, re.compile("|".join(s.patterns))) for s in known]
        self._any = re.compile("|".join(p for s in known for p in s.patterns))
        self._noise = re.compile("|".join(p for s in signatures if s.role is Role.NOISE for p in s.patterns))

    def __getitem__(self, signature_id: str) -> Signature:
        return self._by_id[signature_id]

    def match(self, text: str) -> Signature | None:
        """Return the most specific signature in a line, None if there is none."""
        if self._any.search(text) is None:
            return None
        return next(signature for signature, pattern in self._known if pattern.search(text))

    def is_noise(self, text: str) -> bool:
        """Tell whether a line is never evidence."""
        return self._noise.search(text) is not None

    def of_exit_code(self, code: int) -> Signature | None:
        """Return what an exit code means by itself (-9 and 137: killed), None for an ordinary one."""
        return self._by_exit_code.get(code)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Return the shipped signatures."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(_FILE.read_bytes(), Loader=loader)  # noqa: S506 - both loaders are the safe ones
    return Catalogue(tuple(_signature(entry) for entry in entries))


def _signature(entry: dict[str, object]) -> Signature:
    """Build a signature; an unknown or missing field is a TypeError, which the tests would show."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Signature(**{**fields, "role": Role(fields["role"])})  # type: ignore[arg-type]
