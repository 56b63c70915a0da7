"""Which accelerator this node has, from drivers, device nodes, variables and the platform, as one value.

The CPU is used only if all of them agree that there is no accelerator. The PCI bus in sysfs alone proves
nothing: a container sees all GPUs of its host there, also those that it was not given.

Devices of vendors other than NVIDIA are counted from the kernel's files, without the vendor's libraries:
AMD: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c, which hides devices that the device cgroup denies;
Ascend: hiascend.com, Ascend Docker Runtime (``/dev/davinciN``, one per NPU);
Intel: Linux, drivers/gpu/drm/xe and i915; Level Zero, ZE_FLAT_DEVICE_HIERARCHY.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.hardware.gpus import Gpu, Gpus
from platform_launch.hardware.kernel_files import entries, text
from platform_launch.hardware.models import model_of_pci
from platform_launch.hardware.vendors import UNKNOWN, VENDORS, Vendor, vendor_of
from platform_launch.hardware.visible import HIDING
from platform_launch.text import Phrase, joined
from platform_launch.values import dataclass

_GIB = 1024**3
# Container images set these always, so they are no evidence about this job.
_UNSPECIFIC = ("all", "void")
_AFFIRMATIVE = ("1", "true", "yes", "on")
_FRAME_BUFFER = ("1", "2")  # heap types of a KFD memory bank: public and private


@dataclass(frozen=True)
class AcceleratorReport:
    """One report of accelerators.

    ``vendor`` is a key of :mod:`vendors`, empty if the source does not name one. ``count`` is None if it does
    not count. ``hides``: it asks for the CPU instead.
    """

    vendor: str
    count: int | None
    source: str
    hides: bool = False


@dataclass(frozen=True)
class Accelerator:
    """The conclusion. ``vendor`` is None if everything agrees on the CPU.

    ``count`` devices are reported, None if no source counts them; ``visible`` of them can be used by this
    job's processes. ``source`` is who reports them.
    """

    vendor: Vendor | None = None
    count: int | None = 0
    visible: int = 0
    source: str = ""

    @property
    def described(self) -> Phrase:
        """``8 × AMD GPU``, or ``Google TPU`` if no source counted."""
        vendor = self.vendor or UNKNOWN
        name = f"{vendor.title} {vendor.device}".strip()
        name = vendor.title if vendor.title.endswith(vendor.device) else name
        if self.count is None:
            return Phrase("{name}", name=name)
        return Phrase("{count} × {name}", count=self.count, name=name)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        vendor = self.vendor.key if self.vendor else None
        return {"vendor": vendor, "count": self.count, "visible": self.visible, "source": self.source}


def conclude(found: Gpus, reports: Iterable[AcceleratorReport]) -> Accelerator:
    """Combine the devices that were found and all other reports into one conclusion."""
    reports = tuple(reports)
    if found.devices:
        visible = len(found.devices)
        return Accelerator(vendor_of(found.vendor), visible, visible, found.source)
    hidden = {one.vendor for one in reports if one.hides}
    claims = [
        one for one in reports if not one.hides and one.vendor not in hidden and (one.vendor or not hidden)
    ]
    if not claims or UNKNOWN.key in hidden:
        return Accelerator(source=found.source)
    key = next((one.vendor for one in claims if one.vendor), UNKNOWN.key)
    of_it = [one for one in claims if one.vendor in (key, UNKNOWN.key)]
    counts = [one.count for one in of_it if one.count is not None]
    return Accelerator(vendor_of(key), max(counts, default=None), 0, joined(one.source for one in of_it))


def find_reports(
    environment: Environment, *, sys_root: Path, dev_root: Path
) -> tuple[AcceleratorReport, ...]:
    """Return the reports of device nodes and variables; nodes first, as they are less likely to be stale."""
    return (*_of_nodes(sys_root, dev_root), *_of_variables(environment), *_of_choices(environment))


def _of_nodes(sys_root: Path, dev_root: Path) -> list[AcceleratorReport]:
    names = entries(dev_root)
    found: list[AcceleratorReport] = []
    for vendor in VENDORS:
        nodes = sorted({name for pattern in vendor.nodes for name in fnmatch.filter(names, pattern)})
        if nodes:
            more = Phrase(" and {number} more", number=len(nodes) - 1) if len(nodes) > 1 else ""
            found.append(
                AcceleratorReport(
                    vendor.key, len(nodes), Phrase("/dev/{node}{more}", node=nodes[0], more=more)
                )
            )
        elif vendor.shared in names and (count := _on_bus(vendor, sys_root)):
            source = Phrase("/dev/{node}, PCI bus", node=vendor.shared)
            found.append(AcceleratorReport(vendor.key, count, source))
    return found


def _on_bus(vendor: Vendor, sys_root: Path) -> int:
    """Count a vendor's devices on the PCI bus."""
    bus = sys_root / "bus/pci/devices"
    ids = [f"{text(bus / one / 'vendor')[2:]}:{text(bus / one / 'device')[2:]}" for one in entries(bus)]
    return sum(any(fnmatch.fnmatchcase(one, pattern) for pattern in vendor.pci) for one in ids)


def _of_variables(environment: Environment) -> list[AcceleratorReport]:
    found: list[AcceleratorReport] = []
    for vendor in VENDORS:
        chosen = tuple(name for stage in vendor.visible for name in stage)
        for name in chosen:
            # Several vendors read CUDA_VISIBLE_DEVICES: it names no vendor.
            readers = [one.key for one in VENDORS if any(name in stage for stage in one.visible)]
            value = environment.get(name, "").strip()
            if environment.is_blank(name) or (value and value.split(",")[0].strip() in HIDING):
                found.append(AcceleratorReport(vendor.key, 0, name, hides=True))
            elif value and value.lower() not in _UNSPECIFIC and vendor.key == readers[0]:
                whose = vendor.key if len(readers) == 1 else UNKNOWN.key
                found.append(AcceleratorReport(whose, _entries_of(value), f"{name}={value}"))
        for name in vendor.granted:
            value = environment.get(name, "").strip()
            if value.lower() == "none":
                found.append(AcceleratorReport(vendor.key, 0, name, hides=True))
            elif value and value.lower() not in _UNSPECIFIC:
                found.append(AcceleratorReport(vendor.key, _entries_of(value), f"{name}={value}"))
        marks = [name for name in vendor.marks if name in environment]
        if marks:
            found.append(AcceleratorReport(vendor.key, None, joined(marks)))
    return found


def _of_choices(environment: Environment) -> list[AcceleratorReport]:
    """Return the variables by which a user asks for the CPU."""
    asked = [
        name
        for name in ("DS_ACCELERATOR", "JAX_PLATFORMS", "JAX_PLATFORM_NAME")
        if environment.get(name, "").strip().lower() == "cpu"
    ]
    if environment.get("ACCELERATE_USE_CPU", "").strip().lower() in _AFFIRMATIVE:
        asked.append("ACCELERATE_USE_CPU")
    return [AcceleratorReport(UNKNOWN.key, 0, name, hides=True) for name in asked]


def _entries_of(value: str) -> int:
    """Count a list of devices; a range (``0-7``, as the Ascend runtime takes) counts its members."""
    total = 0
    for entry in filter(None, (part.strip() for part in value.split(","))):
        first, _, last = entry.partition("-")
        is_range = first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 1024
        total += int(last) - int(first) + 1 if is_range else 1
    return total


def count_devices(environment: Environment, *, sys_root: Path, dev_root: Path) -> Gpus:
    """Return the devices of the first vendor other than NVIDIA with devices here."""
    names = entries(dev_root)
    if "kfd" in names and (devices := _amd(sys_root, dev_root)):
        driver = text(sys_root / "module/amdgpu/version") or None
        return Gpus(devices, driver, source="/sys/class/kfd")
    numbers = sorted(int(name[7:]) for name in names if name[:7] == "davinci" and name[7:].isdecimal())
    if numbers:
        return Gpus(_ascend(numbers, sys_root), source="/dev/davinci*")
    if "dri" in names and (devices := _intel(environment, sys_root, dev_root)):
        return Gpus(devices, source="/sys/class/drm")
    return Gpus()


def _amd(sys_root: Path, dev_root: Path) -> tuple[Gpu, ...]:
    """Read KFD's nodes that have SIMD units, in the order in which ROCm numbers them."""
    nodes = sys_root / "class/kfd/kfd/topology/nodes"
    found: list[Gpu] = []
    for name in sorted((one for one in entries(nodes) if one.isdecimal()), key=int):
        values = _pairs(nodes / name / "properties")
        render = f"renderD{values.get('drm_render_minor', 0)}"
        if not values.get("simd_count") or not (dev_root / "dri" / render).exists():
            continue
        device = sys_root / "class/drm" / render / "device"
        size_bytes = int(text(device / "mem_info_vram_total") or 0) or _frame_buffer_bytes(nodes / name)
        model = model_of_pci("1002", f"{values.get('device_id', 0):04x}")
        gfx = values.get("gfx_target_version", 0)
        plain = f"AMD gfx{gfx // 10000}{gfx // 100 % 100:x}{gfx % 100:x}"
        location = values.get("location_id", 0)
        found.append(
            Gpu(
                len(found),
                text(device / "product_name") or model or plain,
                size_bytes / _GIB if size_bytes else None,
                f"GPU-{values['unique_id']:x}" if values.get("unique_id") else "",
                pci=f"{values.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}"
                f":{location >> 3 & 0x1F:02x}.{location & 7}",
                vendor="amd",
            )
        )
    return tuple(found)


def _frame_buffer_bytes(node: Path) -> int:
    banks = [_pairs(node / "mem_banks" / name / "properties") for name in entries(node / "mem_banks")]
    return sum(one.get("size_in_bytes", 0) for one in banks if str(one.get("heap_type")) in _FRAME_BUFFER)


def _pairs(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    words = [line.split() for line in text(path).splitlines()]
    return {one[0]: int(one[1]) for one in words if len(one) == 2 and one[1].isdecimal()}


def _ascend(numbers: list[int], sys_root: Path) -> tuple[Gpu, ...]:
    """Name the NPUs; their PCI addresses are known only where the whole machine is seen."""
    bus = sys_root / "bus/pci/devices"
    addresses = sorted(one for one in entries(bus) if text(bus / one / "vendor") == "0x19e5")
    addresses = [one for one in addresses if text(bus / one / "class").startswith("0x1200")]
    models = {model_of_pci("19e5", text(bus / one / "device")[2:]) for one in addresses}
    name = next(iter(models)) if len(models) == 1 else ""
    whole = addresses if len(addresses) == len(numbers) else [""] * len(numbers)
    return tuple(
        Gpu(number, name or "Ascend NPU", None, "", pci=address, vendor="ascend")
        for number, address in zip(numbers, whole, strict=True)
    )


def _intel(environment: Environment, sys_root: Path, dev_root: Path) -> tuple[Gpu, ...]:
    """Read discrete GPUs; one of several tiles is several devices, unless they are composed.

    An integrated GPU sits on bus 0 and trains nothing.
    """
    composed = environment.get("ZE_FLAT_DEVICE_HIERARCHY", "").strip().upper() == "COMPOSITE"
    found: list[Gpu] = []
    for render in sorted(name for name in entries(dev_root / "dri") if name.startswith("renderD")):
        device = sys_root / "class/drm" / render / "device"
        if text(device / "vendor") != "0x8086" or not text(device / "class").startswith("0x03"):
            continue
        pci = device.resolve().name
        if pci.startswith("0000:00:"):
            continue
        tiles = [one for one in entries(device) if one.startswith("tile")]
        if not tiles:  # i915 names them by their graphics engine
            cards = [one for one in entries(device / "drm") if one.startswith("card")]
            tiles = [gt for card in cards for gt in entries(device / "drm" / card / "gt")]
        name = model_of_pci("8086", text(device / "device")[2:]) or "Intel GPU"
        found += [
            Gpu(len(found) + tile, name, None, "", pci=pci, vendor="intel")
            for tile in range(1 if composed else max(1, len(tiles)))
        ]
    return tuple(found)
