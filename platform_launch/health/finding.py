"""One thing that is wrong with a device, and what it makes of its node."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from platform_launch.sentences import Sentence, Value, sentence
from platform_launch.text import Phrase


class Grade(str, enum.Enum):
    """What a node is worth. A job may run on a suspect again, and should not on a bad one."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    BAD = "bad"


_ORDER = tuple(Grade)
_MOST_REASONS = 8

# Explained in docs/reference/findings.md.
IDS = frozenset(
    {
        "device-driver-silent",
        "gpu-lost",
        "gpu-recovery-action",
        "gpu-rows-failed",
        "gpu-rows-pending",
        "gpu-ecc",
        "gpu-slow",
        "gpu-slowdown",
        "gpu-xid",
        "gpu-xid-program",
        "nvlink-errors",
        "pcie-replays",
        "rdma-port-errors",
        "rdma-port-flaps",
        "rdma-port-lost",
    }
)


@dataclass(frozen=True)
class DeviceFinding:
    """``what`` is wrong ``where`` (``GPU 3``, ``mlx5_0:1``), and what to do about it (``hint``).

    ``code`` is the driver's number of an XID: two of them on one GPU are two things.
    """

    id: str
    grade: Grade
    where: str
    what: str
    hint: str = ""
    code: int | None = None

    def sentence(self) -> Sentence:
        """Return it as a code and values; the finding's own id is one of these."""
        values: dict[str, Value] = {"where": self.where, "what": self.what, "finding": self.id}
        if self.code is None:
            return Sentence("device-finding", values)
        return Sentence("device-finding-numbered", {**values, "number": self.code})

    def __post_init__(self) -> None:
        if self.id not in IDS:
            raise ValueError(
                f"{self.id!r} is no finding of a device: expected one of {', '.join(sorted(IDS))}"
            )


@dataclass(frozen=True)
class NodeHealth:
    """What a node is worth, and why: one line for each finding that says so, the worst first.

    ``devices`` are those that the findings are about, by their names (``GPU 3``); ``findings`` are what the
    reasons say.
    """

    grade: Grade
    reasons: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    findings: tuple[DeviceFinding, ...] = field(default=(), compare=False)

    @property
    def bad(self) -> bool:
        """Whether no job should be put on it before it is repaired."""
        return self.grade is Grade.BAD

    def sentence(self) -> Sentence:
        """Return the reasons as codes and values."""
        return sentence("device-findings", findings=[one.sentence() for one in self.findings])


def worst(grades: Iterable[Grade]) -> Grade:
    """Return the worst of them, HEALTHY for none at all."""
    return max(grades, key=_ORDER.index, default=Grade.HEALTHY)


def node_health(findings: Iterable[DeviceFinding]) -> NodeHealth:
    """Return what these findings make of the node they were found on."""
    ranked = sorted(findings, key=lambda one: -_ORDER.index(one.grade))
    telling = [one for one in ranked if one.grade is not Grade.HEALTHY]
    return NodeHealth(
        worst(one.grade for one in telling),
        tuple(
            dict.fromkeys(
                Phrase("{where}: {what} [{finding}]", where=one.where, what=one.what, finding=one.id)
                for one in telling
            )
        )[:_MOST_REASONS],
        tuple(dict.fromkeys(one.where for one in telling)),
        tuple({(one.where, one.what, one.id): one for one in telling}.values())[:_MOST_REASONS],
    )
