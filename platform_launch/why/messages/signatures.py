"""The signatures of known failures, read from the folder ``known``, whose README explains each field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from platform_launch.events import Event
from platform_launch.files import made_of, yaml_values
from platform_launch.why.lines import literals
from platform_launch.why.lines.line import Location, shown
from platform_launch.why.lines.literals import Index, PatternSet, index_of

_FOLDER = Path(__file__).with_name("known")
_UNITS = {"": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# A bus address as nvidia-smi, the driver and NVML write it; the kernel leaves out what is zero.
_BUS_ADDRESS = re.compile(r"(?:0000)?([\da-f]{4}:[\da-f]{2}:[\da-f]{2})(?:\.0)?", re.I)
_PLACES: dict[str, Callable[[str], Any]] = {
    "node": int,
    "host": str,
    "pod": str,
    "task": int,
    "worker": str,
    "rank": int,
    "local_rank": int,
    "gpu": lambda gpu: found[1].lower() if (found := _BUS_ADDRESS.fullmatch(gpu)) else gpu,
}

# Details with one more value per place.
_LISTED = frozenset({"missing ranks", "processes"})
_DETAIL_NAMES = {
    "have": "counted",
    "missing": "missing ranks",
    "holder": "processes",
    "want": "expected",
    "waited_for": "waited for",
    "peer_operation": "peer's operation",
    "peer_shape": "peer's shape",
    "remote_rank": "remote rank",
    "tpu": "TPU",
}


class SignatureRole(str, Enum):
    """What a message says about a failure; see the README of ``known``."""

    CAUSE = "cause"
    SUSPECT = "suspect"
    CONSEQUENCE = "consequence"
    SUMMARY = "summary"
    NOISE = "noise"


class SignatureTrait(str, Enum):
    """What else is known about a message, besides its role; see the README of ``known``."""

    ENVELOPE = "envelope"
    ENDS_JOB = "ends_job"
    FROM_OUTSIDE = "from_outside"
    MEETS = "meets"
    OFTEN_CAUGHT = "often_caught"
    PREPARES = "prepares"
    SILENT = "silent"
    SUFFERED = "suffered"
    WAITED = "waited"
    WARNS = "warns"


_STRONGEST_FIRST = (
    SignatureRole.CAUSE,
    SignatureRole.SUSPECT,
    SignatureRole.CONSEQUENCE,
    SignatureRole.SUMMARY,
)


@dataclass(frozen=True)
class Signature:
    """One known failure."""

    id: str
    title: str
    meaning: str
    fix: str
    source: str
    role: SignatureRole = SignatureRole.CAUSE
    fix_others_hold: str = ""
    traits: frozenset[SignatureTrait] = frozenset()
    specificity: int = 3
    patterns: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    count: str = ""
    exit_codes: tuple[int, ...] = ()
    explains: tuple[str, ...] = ()
    narrows: str = ""
    frames: str = ""
    message: str = ""
    raised: bool = False
    distinct: bool = False
    of_another: bool = False
    with_oom_kills: str = ""
    without_oom_kills: str = ""

    def has(self, *traits: SignatureTrait) -> bool:
        """Return whether it has one of these traits."""
        return not self.traits.isdisjoint(traits)


@dataclass(frozen=True)
class Match:
    """A signature in a line: its position, the place that the words name, and the other details.

    ``others`` holds further places of the same kind, named one by one in its line or below.
    """

    signature: Signature
    position: int
    where: Location
    details: tuple[tuple[str, str], ...] = ()
    others: tuple[Location, ...] = ()


class Catalogue:
    """All signatures; finds the one that matches a line, by the indices of their patterns."""

    def __init__(
        self, signatures: tuple[Signature, ...], owners: list[str], known: Index, noise: Index
    ) -> None:
        self.signatures = signatures
        self._by_id = {signature.id: signature for signature in signatures}
        self._by_exit_code = {code: s for s in signatures for code in s.exit_codes}
        self._by_event: dict[str, list[tuple[Signature, list[tuple[str, str]]]]] = {}
        for signature in signatures:
            for event_id, *words in map(str.split, signature.events):
                fields = [(name, value) for name, _, value in (word.partition("=") for word in words)]
                self._by_event.setdefault(event_id, []).append((signature, fields))
        self._narrower = [s for s in signatures if s.narrows]
        self._placed = [s for s in signatures if s.frames and not s.narrows]
        self._owners = [self._by_id[owner] for owner in owners]
        self._patterns = PatternSet(known)
        self._noise = PatternSet(noise)

    def __getitem__(self, signature_id: str) -> Signature:
        return self._by_id[signature_id]

    def narrowed(self, signature: Signature, frames: str, message: str, *, held: bool = False) -> Signature:
        """Return the more precise signature, by where the exception was raised or by these words.

        ``frames`` holds the places in the code, one per line, the outermost first. If other processes
        ``held`` a GPU's memory, only signatures with advice for that count.
        """
        for one in self._narrower:
            if held and not one.fix_others_hold:
                continue
            applies = one.narrows == signature.id and (not one.message or re.search(one.message, message))
            if applies and (not one.frames or re.search(one.frames, frames)):
                return one
        return signature

    def raised_at(self, frames: str, message: str) -> Signature | None:
        """Return the signature that only the place of the raise shows."""
        placed = (s for s in self._placed if re.search(s.frames, frames) and re.search(s.message, message))
        return next(placed, None)

    def match(self, text: str) -> Match | None:
        """Return the match that says most about a line, None if there is none."""
        for number, found in self._patterns.matches(text):
            signature = self._owners[number]
            if _counts(signature.count, found):
                match = Match(signature, found.start(), *_place_and_details(found))
                return _with_details(match, signature.beside, (text[found.start() :],))
        return None

    def match_of(self, signature: Signature, text: str) -> Match | None:
        """Return the match of one signature in a line."""
        found = next((found for p in signature.patterns if (found := re.search(p, text))), None)
        return Match(signature, found.start(), *_place_and_details(found)) if found is not None else None

    def with_following(self, match: Match, texts: Iterable[str]) -> Match:
        """Return a match with further details from the lines below."""
        return _with_details(match, match.signature.below, texts)

    def of_event(self, event: Event) -> Signature | None:
        """Return the signature of an event of this launcher, by its id and perhaps fields (``id
        name=value``).
        """
        for signature, fields in self._by_event.get(event.id, ()):
            if all(str(event.fields.get(name, "")) == value for name, value in fields):
                return signature
        return None

    def is_noise(self, text: str) -> bool:
        """Return whether a line is never evidence."""
        return any(True for _ in self._noise.matches(text))

    def of_exit_code(self, code: int) -> Signature | None:
        """Return the signature of an exit code (-9 and 137: killed), None for an ordinary one."""
        return self._by_exit_code.get(code)


def _with_details(match: Match, patterns: Iterable[str], texts: Iterable[str]) -> Match:
    """Return a match with the places and details of further patterns."""
    all_details = dict(match.details)
    named = [match.where, *match.others]
    for text in texts:
        for found in (found for one in patterns for found in re.finditer(one, text)):
            where, details = _place_and_details(found)
            if named[0].filled(where) == where.filled(named[0]):
                named[0] = named[0].filled(where)
            elif where not in named:
                named.append(where)
            for name, value in details:
                earlier = all_details.setdefault(name, value)
                if name in _LISTED:
                    all_details[name] = ", ".join(dict.fromkeys([*earlier.split(", "), *value.split(", ")]))
    return replace(match, where=named[0], details=tuple(all_details.items()), others=tuple(named[1:]))


def _counts(comparison: str, found: re.Match[str]) -> bool:
    """Return whether two numbers or sizes of a match compare as the signature asks."""
    if not comparison:
        return True
    one, sign, other = comparison.split()
    first, second = amount(found[one]), amount(found[other])
    return first > second if sign == ">" else first < second


def amount(text: str) -> float:
    """Return a number, or the bytes of a PyTorch size (``1.50 GiB``); zero for anything else."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        return 0.0


def _place_and_details(found: re.Match[str]) -> tuple[Location, tuple[tuple[str, str], ...]]:
    named = {name: value for name, value in found.groupdict().items() if value}
    place = {name: kind(named[name]) for name, kind in _PLACES.items() if name in named}
    details = (
        (_DETAIL_NAMES.get(name, name), shown(value)) for name, value in named.items() if name not in _PLACES
    )
    return Location(**place), tuple(details)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Return the shipped signatures."""
    files = sorted(_FOLDER.glob("*.yaml"))

    def entries_and_indices() -> tuple[list[dict[str, Any]], list[str], Index, Index]:
        entries = [entry for file in files for entry in yaml_values(file.read_bytes())]
        return entries, *_indices(list(map(_signature, entries)))

    module = Path(__file__)
    entries, *indices = made_of(module, [module, Path(literals.__file__), *files], entries_and_indices)
    return Catalogue(tuple(map(_signature, entries)), *indices)


def _indices(signatures: list[Signature]) -> tuple[list[str], Index, Index]:
    """Return the signature of each pattern, and the indices of these patterns and of the noise patterns."""
    known = [s for s in signatures if s.role is not SignatureRole.NOISE and s.patterns]
    # The best first: the first hit counts: a cause before a consequence on the same line, and the most
    # general patterns last.
    known.sort(key=lambda s: (not s.specificity, _STRONGEST_FIRST.index(s.role), -s.specificity))
    noise = [p for s in signatures if s.role is SignatureRole.NOISE for p in s.patterns]
    owners = [s.id for s in known for _ in s.patterns]
    return owners, index_of(pattern for s in known for pattern in s.patterns), index_of(noise)


def _signature(entry: dict[str, object]) -> Signature:
    """Build a signature; an unknown or missing field is a TypeError, which the tests find."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    fields["role"] = SignatureRole(fields.get("role", "cause"))
    fields["traits"] = frozenset(map(SignatureTrait, fields.get("traits", ())))  # type: ignore[call-overload]
    return Signature(**fields)  # type: ignore[arg-type]
