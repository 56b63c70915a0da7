"""How much of a GPU's memory others hold, where the message that it ran out tells what its process holds."""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.why.messages.sizes import amount

# What a process holds outside PyTorch (its CUDA context, buffers of NCCL) is far less.
_MUCH = 0.2


def held_by_others(details: Mapping[str, str]) -> str:
    """Return it as a size, where it is much of the GPU; nothing where it is not, or not known."""
    capacity, own = amount(details.get("capacity", "")), _own(details)
    if not own or "free" not in details:
        return ""
    rest = capacity - amount(details["free"]) - own
    return f"{rest / 2**30:.1f} GiB" if rest > _MUCH * capacity else ""


def _own(details: Mapping[str, str]) -> float:
    """Return what the process holds, as far as the message tells: all, or PyTorch's part."""
    if whole := details.get("used") or details.get("reserved"):
        return amount(whole)
    parts = [details.get(name, "") for name in ("allocated", "unallocated")]
    return sum(map(amount, parts)) if all(parts) else 0.0
