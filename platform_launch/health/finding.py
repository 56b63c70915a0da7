"""A fault of a device, and the resulting grade of its node."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import field

from platform_launch.sentences import Sentence, Value, as_value, sentence
from platform_launch.text import Phrase
from platform_launch.values import dataclass


class Grade(str, enum.Enum):
    """The grade of a node. A job may run on a suspect node again, but should not on a bad one."""

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
        "npu-alarm",
        "nvlink-errors",
        "pcie-replays",
        "rdma-port-errors",
        "rdma-port-flaps",
        "rdma-port-lost",
    }
)


@dataclass(frozen=True)
class DeviceFinding:
    """What is wrong, where (``GPU 3``, ``mlx5_0:1``), and what to do about it (``hint``).

    ``code`` is the driver's XID number: two codes on one GPU are two findings.
    """

    id: str
    grade: Grade
    where: str
    what: str
    hint: str = ""
    code: int | None = None

    def sentence(self) -> Sentence:
        """Return it as a code and values; the finding's id is one of the values."""
        values: dict[str, Value] = {
            "where": as_value(self.where),
            "what": as_value(self.what),
            "finding": self.id,
        }
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
    """A node's grade and its reasons: one line per finding, the worst first.

    ``devices`` are the names of the affected devices (``GPU 3``); ``findings`` are the findings of the
    reasons.
    """

    grade: Grade
    reasons: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    findings: tuple[DeviceFinding, ...] = field(default=(), compare=False)

    @property
    def bad(self) -> bool:
        """Whether no job should use it before it is repaired."""
        return self.grade is Grade.BAD

    def sentence(self) -> Sentence:
        """Return the reasons as codes and values."""
        return sentence("device-findings", findings=[one.sentence() for one in self.findings])


def worst(grades: Iterable[Grade]) -> Grade:
    """Return the worst grade, HEALTHY for none at all."""
    return max(grades, key=_ORDER.index, default=Grade.HEALTHY)


def node_health(findings: Iterable[DeviceFinding]) -> NodeHealth:
    """Return the health of a node with these findings."""
    ranked = sorted(findings, key=lambda one: -_ORDER.index(one.grade))
    unhealthy = [one for one in ranked if one.grade is not Grade.HEALTHY]
    return NodeHealth(
        worst(one.grade for one in unhealthy),
        tuple(
            dict.fromkeys(
                Phrase("{where}: {what} [{finding}]", where=one.where, what=one.what, finding=one.id)
                for one in unhealthy
            )
        )[:_MOST_REASONS],
        tuple(dict.fromkeys(one.where for one in unhealthy)),
        tuple({(one.where, one.what, one.id): one for one in unhealthy}.values())[:_MOST_REASONS],
    )
