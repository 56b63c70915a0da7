"""Gradient accumulation that keeps the global batch when a job continues with fewer nodes. Pure."""

from __future__ import annotations

import math

from platform_launch.environment import Environment
from platform_launch.errors import InputError, shown
from platform_launch.plan.variables import EnvVar
from platform_launch.text import Phrase
from platform_launch.topology import Topology
from platform_launch.values import dataclass

OF_ANY_SCRIPT = "PLATFORM_LAUNCH_GRADIENT_ACCUMULATION"
# accelerate's Accelerator reads the first one.
_VARIABLES = ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", OF_ANY_SCRIPT)


@dataclass(frozen=True)
class Accumulation:
    """How many steps are accumulated; ``launched_steps`` with all nodes that were launched.

    ``batch_ratio`` is the global batch relative to that of all nodes: 1 if it is kept.
    """

    launched_steps: int
    steps: int
    batch_ratio: float

    @property
    def rate_ratio(self) -> float:
        """The factor of the learning rate: the square root of that of the global batch."""
        return math.sqrt(self.batch_ratio)

    def describe(self) -> Phrase:
        """Describe what happens to the global batch."""
        text = "gradient accumulation is {steps} instead of {before} and keeps the global batch"
        if self.batch_ratio != 1:
            text = (
                "gradient accumulation is {steps} instead of {before}, the global batch {ratio:.0%} of before"
            )
        return Phrase(text, steps=self.steps, before=self.launched_steps, ratio=self.batch_ratio)


def accumulation(launched_steps: int, topology: Topology) -> Accumulation:
    """Return the accumulation that comes closest to the global batch of all nodes."""
    wanted = launched_steps * topology.launched / topology.nnodes
    steps = max(1, round(wanted))
    return Accumulation(launched_steps, steps, steps / wanted)


def variables(env: Environment, topology: Topology) -> dict[EnvVar, Accumulation]:
    """Return the variables in which the user set the accumulation, adjusted to the nodes that take part.

    Raises InputError if one is not a number.
    """
    found = {}
    for name in _VARIABLES:
        value = env.get(name)
        if value is None:
            continue
        if not (value.isascii() and value.isdigit() and int(value)):
            raise InputError(
                Phrase(
                    "{name}={value}: expected a whole number of at least 1", name=name, value=shown(value)
                ),
                "set it to the steps of gradient accumulation with all nodes",
            )
        scaled = accumulation(int(value), topology)
        found[EnvVar(name, str(scaled.steps), "launcher", scaled.describe())] = scaled
    return found


def batch_note(known: Accumulation | None, topology: Topology) -> Phrase:
    """Describe what happens to the global batch of a job with missing nodes."""
    if known is not None:
        return known.describe()
    return Phrase(
        "the script's gradient accumulation is unknown, so the global batch is {ratio:.0%} of before, unless "
        "the script divides a fixed one among its processes",
        ratio=topology.nnodes / topology.launched,
    )


def warnings(known: Accumulation | None, topology: Topology) -> tuple[Phrase, ...]:
    """Warn about a job that may continue with fewer nodes and could not keep its global batch."""
    if known is not None or topology.least == topology.nnodes:
        return ()
    return (
        Phrase(
            "with fewer nodes the global batch shrinks, unless the script divides a fixed one among its "
            "processes: set {name} to the script's steps of gradient accumulation, and read it there",
            name=OF_ANY_SCRIPT,
        ),
    )
