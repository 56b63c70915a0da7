"""Which GPU architectures a wheel is compiled for, and which GPUs can run them.

Machine code (``9.0``) runs on GPUs of the same major and the same or a higher minor capability; PTX
(``9.0+PTX`` is both) is compiled by the driver, at load time, for any newer GPU (CUDA C++ Programming Guide,
"Binary Compatibility" and "PTX Compatibility"). DeepSpeed's op builders take no ``9.0a``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from platform_launch.errors import UsageError, shown
from platform_launch.hardware.models import CAPABILITIES, capability_of
from platform_launch.text import Phrase, joined

Capability = tuple[int, int]

_FORM = re.compile(r"([1-9][0-9]?)\.([0-9])(\+PTX)?")


@dataclass(frozen=True, order=True)
class Architecture:
    """One entry of TORCH_CUDA_ARCH_LIST."""

    major: int
    minor: int
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{'+PTX' if self.ptx else ''}"

    @property
    def machine_code(self) -> str:
        """The name nvcc gives it: ``sm_90``."""
        return f"sm_{self.major}{self.minor}"

    def runs_on(self, gpu: Capability) -> bool:
        """Return whether code for this architecture runs on a GPU of that compute capability."""
        own = (self.major, self.minor)
        return (gpu[0] == self.major and gpu >= own) or (self.ptx and gpu >= own)


def parse(text: str, source: str = "--arch") -> tuple[Architecture, ...]:
    """Read ``8.0;9.0+PTX``, ``H100;A100`` or a mixture, separated by semicolons or commas.

    Raises UsageError for anything else, naming ``source``.
    """
    words = [word.strip() for word in re.split(r"[;,]", text)]
    found = [_parse_one(word, f"{source} {shown(text)}") for word in words if word]
    if not found:
        raise UsageError(
            Phrase(
                "{source} {text} names no architecture: expected e.g. 8.0;9.0",
                source=source,
                text=shown(text),
            ),
            _EXAMPLES,
        )
    return tuple(sorted(set(found)))


def _parse_one(word: str, read: str) -> Architecture:
    match = _FORM.fullmatch(word)
    if match is not None:
        return Architecture(int(match[1]), int(match[2]), match[3] is not None)
    capability = capability_of(word)
    if capability is None:
        raise UsageError(
            Phrase(
                "{read}: {word} is neither an architecture (MAJOR.MINOR, such as 9.0 or 9.0+PTX) "
                "nor a GPU known here: {known}",
                read=read,
                word=shown(word),
                known=joined(CAPABILITIES),
            ),
            _EXAMPLES,
        )
    return Architecture(*capability)


_EXAMPLES = Phrase(
    "quote the list for the shell: --arch '8.0;9.0', --arch H100, or --arch auto on a node with the GPUs"
)


def of_gpus(capabilities: Iterable[Capability]) -> tuple[Architecture, ...]:
    """Return the architectures of exactly these GPUs."""
    return tuple(Architecture(*capability) for capability in sorted(set(capabilities)))


def arch_list(architectures: Iterable[Architecture]) -> str:
    """Return the value of TORCH_CUDA_ARCH_LIST."""
    return ";".join(str(architecture) for architecture in architectures)
