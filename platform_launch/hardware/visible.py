"""Which of a machine's GPUs a job may use: CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES, and other vendors'.

The rules are those of the CUDA Programming Guide ("CUDA Environment Variables") and of NVIDIA's container
toolkit. CUDA stops silently at the first entry it cannot use; here that is an error, because nobody wants a
job on fewer GPUs than they named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from platform_launch.environment import Environment
from platform_launch.errors import HardwareError, UsageError
from platform_launch.hardware.gpus import Gpu, Gpus, usage_warnings
from platform_launch.hardware.vendors import vendor_of
from platform_launch.text import Phrase, counted, joined
from platform_launch.values import dataclass

CUDA = "CUDA_VISIBLE_DEVICES"
CONTAINER = "NVIDIA_VISIBLE_DEVICES"

# Values that leave no device. Slurm writes NoDevFiles (src/interfaces/gres.c).
HIDING = ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class _Shown:
    """The remaining GPUs, and a phrase for what narrowed them (empty: nothing did)."""

    devices: tuple[Gpu, ...]
    narrowed_by: str = ""
    warnings: tuple[str, ...] = ()


def narrow(machine: Gpus, environment: Environment) -> Gpus:
    """Return the devices that a process of this job should see, in its order.

    CUDA's own variable wins if it is set, because CUDA reads no other. Raises HardwareError if it names a GPU
    that does not exist, UsageError if one of its entries is invalid.
    """
    if machine.vendor != "nvidia":
        return _in_stages(machine, environment)
    chosen = environment.text(CUDA)
    if chosen is not None:
        shown = _by_cuda(machine.devices, chosen.value)
    elif environment.is_blank(CUDA):
        shown = _hidden(machine.devices, "")
    else:
        shown = _by_container(machine.devices, environment)
    return replace(
        machine,
        devices=shown.devices,
        source=Phrase("{source}, {narrowed_by}", source=machine.source, narrowed_by=shown.narrowed_by)
        if shown.narrowed_by
        else machine.source,
        warnings=(*machine.warnings, *shown.warnings, *usage_warnings(shown.devices)),
    )


def _in_stages(machine: Gpus, environment: Environment) -> Gpus:
    """Apply another vendor's variables: what one stage leaves is numbered anew for the next.

    Slurm without constrained devices sets ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES to the same indices
    of the node, of which the second stage finds none (ROCm, GPU isolation).
    """
    devices, chosen_by = machine.devices, list[str]()
    for stage in vendor_of(machine.vendor).visible:
        name = next((one for one in stage if one in environment or environment.is_blank(one)), None)
        if name is None:
            continue
        value = environment.get(name, "").strip()
        if value.lower() == "all":
            continue
        chosen_by.append(Phrase("chosen by {variable}={value}", variable=name, value=value))
        if value.split(",")[0].strip() in HIDING:
            shown = _hidden(devices, value, name)
            return replace(machine, devices=(), warnings=(*machine.warnings, *shown.warnings))
        devices = _numbered(devices, name, value)
    return replace(machine, devices=devices, source=joined([machine.source, *chosen_by]))


def _numbered(devices: tuple[Gpu, ...], name: str, value: str) -> tuple[Gpu, ...]:
    """Return the devices that positions or UUIDs name. Other entries, such as tiles, are only counted."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()]
    taken: list[Gpu] = []
    for entry in entries:
        if entry.isascii() and entry.isdigit():
            named = devices[int(entry) : int(entry) + 1]
        elif entry.startswith("GPU-"):
            named = tuple(gpu for gpu in devices if gpu.uuid and gpu.uuid.lower() == entry.lower())
        else:
            return devices[: len(entries)]
        if not named or named[0] in taken:
            raise HardwareError(
                Phrase(
                    "{variable}={value!r} names {entry!r}, which is not there: {left} left to choose from, "
                    "numbered from 0",
                    variable=name,
                    value=value,
                    entry=entry,
                    left=len(devices),
                ),
                "unset all but one of the variables that choose devices, or write positions among those left",
            )
        taken += named
    return tuple(taken)


def _by_cuda(devices: Sequence[Gpu], value: str) -> _Shown:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order; ``-1`` ends the list, as in CUDA."""
    entries = [entry.strip() for entry in value.rstrip(", ").split(",")]
    if entries[0] in HIDING:
        return _hidden(devices, value)
    if not devices:
        return _Shown(())  # accelerators reports the variable
    warnings: tuple[str, ...] = ()
    if "-1" in entries:
        warnings = (
            Phrase("{variable}={value!r}: CUDA ignores everything from -1 on", variable=CUDA, value=value),
        )
        entries = entries[: entries.index("-1")]
    chosen: list[Gpu] = []
    for entry in entries:
        named = _named(devices, entry, value)
        if any(gpu in chosen for gpu in named):
            raise UsageError(
                Phrase(
                    "{variable}={value!r} names {entry!r} a second time: CUDA would then show no GPU at all",
                    variable=CUDA,
                    value=value,
                    entry=entry,
                ),
                "name each GPU once",
            )
        chosen += named
    return _Shown(tuple(chosen), Phrase("chosen by {variable}={value}", variable=CUDA, value=value), warnings)


def _hidden(devices: Sequence[Gpu], value: str, name: str = CUDA) -> _Shown:
    warning = Phrase(
        "{variable}={value!r} hides every GPU of this machine ({count})",
        variable=name,
        value=value,
        count=len(devices),
    )
    return (
        _Shown((), Phrase("hidden by {variable}={value!r}", variable=name, value=value), (warning,))
        if devices
        else _Shown(())
    )


def _named(devices: Sequence[Gpu], entry: str, value: str) -> list[Gpu]:
    """Return what one entry means: an index, or the beginning of a GPU's or a MIG instance's UUID.

    A GPU whose MIG mode is on means all its instances.
    """
    if entry.isascii() and entry.isdigit():
        named = [gpu for gpu in devices if str(gpu.index) == (entry.lstrip("0") or "0")]
    elif entry.startswith(("GPU-", "MIG-")):
        named = [gpu for gpu in devices if any(name.startswith(entry) for name in (gpu.uuid, *gpu.aliases))]
    else:
        raise UsageError(
            Phrase(
                "{variable}={value!r}: {entry!r} is neither an index nor a UUID: CUDA would silently "
                "stop before it",
                variable=CUDA,
                value=value,
                entry=entry,
            ),
            "list indices (0,1,2,3), or UUIDs that begin with GPU- or MIG-",
        )
    meant = {gpu.uuid if entry.startswith("MIG-") else str(gpu.index) for gpu in named}
    if len(meant) > 1:
        raise UsageError(
            Phrase(
                "{variable}={value!r}: {entry!r} matches the UUIDs of {count} GPUs",
                variable=CUDA,
                value=value,
                entry=entry,
                count=len(meant),
            ),
            "write enough of the UUID to distinguish them (nvidia-smi -L lists them)",
        )
    if not named:
        indices = joined(str(index) for index in sorted({gpu.index for gpu in devices}))
        raise HardwareError(
            Phrase(
                "{variable}={value!r} names {entry!r}, but this machine shows {gpus}, index {indices}: "
                "CUDA would silently stop before it",
                variable=CUDA,
                value=value,
                entry=entry,
                gpus=counted(len(devices), "GPU"),
                indices=indices,
            ),
            Phrase(
                "correct {variable}; if the GPU should be there, look in dmesg for Xid errors and use "
                "another node",
                variable=CUDA,
            ),
        )
    return named


def _by_container(devices: tuple[Gpu, ...], environment: Environment) -> _Shown:
    """Keep only the GPUs that the container was given, if the driver shows more.

    The container runtime normally hides the other GPUs already. A privileged container sees all of the
    node's, and would take those of its neighbours. ``void`` proves nothing: devices injected by CDI leave
    it in the environment beside real GPUs (nvidia-container-toolkit#395).
    """
    given = environment.text(CONTAINER)
    if given is None or given.value in ("all", "void") or not devices:
        return _Shown(devices)
    if given.value == "none":
        warning = Phrase(
            "{variable}=none, yet the driver shows {gpus}: none is used",
            variable=CONTAINER,
            gpus=counted(len(devices), "GPU"),
        )
        return _Shown((), Phrase("none granted by {variable}", variable=CONTAINER), (warning,))
    entries = list(dict.fromkeys(entry.strip() for entry in given.value.split(",") if entry.strip()))
    if len(entries) > len(devices):
        warning = Phrase(
            "{variable} grants {granted} GPUs, but the driver shows {count}: the others may have "
            "fallen off the bus (look in dmesg for Xid errors)",
            variable=CONTAINER,
            granted=len(entries),
            count=len(devices),
        )
        return _Shown(devices, warnings=(warning,))
    granted = tuple(gpu for entry in entries for gpu in devices if entry in (gpu.uuid, str(gpu.index)))
    if len(entries) == len(devices) or len(granted) != len(entries):
        return _Shown(devices)
    warning = Phrase(
        "the driver shows {count} GPUs, {variable} grants {granted} of them (a privileged "
        "container?): only these are used",
        count=len(devices),
        variable=CONTAINER,
        granted=len(entries),
    )
    return _Shown(
        granted, Phrase("granted by {variable}={value}", variable=CONTAINER, value=given.value), (warning,)
    )
