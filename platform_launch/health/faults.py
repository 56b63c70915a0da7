"""Faults of GPUs and ports that a single reading shows. Thresholds: docs/decisions/0017."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from platform_launch.hardware.gpu_health import GpuHealth, Xid
from platform_launch.hardware.rdma import PortHealth
from platform_launch.health.finding import DeviceFinding, Grade
from platform_launch.health.reading import DeviceReading
from platform_launch.text import Phrase, counted

# NVML_GPU_RECOVERY_ACTION_…
RECOVERY_ACTIONS = {
    1: Phrase("a reset of the GPU"),
    2: Phrase("a reboot of the node"),
    3: Phrase("a stop of all traffic between GPUs"),
    4: Phrase("a drain, then a reset of the GPU"),
    5: Phrase("a recovery of the IMEX domain"),
    6: Phrase("a reset of the bus"),
    7: Phrase("a reboot of the system"),
}
# The same distinction as in `why`: errors of a program's own kernels, and errors of the device or its links.
PROGRAM_XIDS = frozenset({8, 11, 13, 31, 32, 43, 45, 68, 69})
DEVICE_XIDS = {
    48: Phrase("an uncorrectable memory error"),
    54: Phrase("auxiliary power is not connected"),
    56: Phrase("a fault of the display engine"),
    57: Phrase("a fault in programming the video memory interface"),
    58: Phrase("unstable video memory interface"),
    61: Phrase("a halt of an internal controller"),
    62: Phrase("a halt of an internal controller"),
    64: Phrase("a row that could not be remapped"),
    65: Phrase("a fault of the video processor"),
    74: Phrase("an NVLink error"),
    79: Phrase("the GPU has fallen off the bus"),
    80: Phrase("corrupted data sent to the GPU"),
    81: Phrase("a fault of the VGA subsystem"),
    95: Phrase("an uncontained memory error"),
    110: Phrase("a security fault"),
    119: Phrase("the GPU's system processor does not answer"),
    120: Phrase("an error of the GPU's system processor"),
    140: Phrase("an unrecovered memory error"),
    143: Phrase("the GPU could not be initialized"),
}
_SUSPECT_XIDS = {
    63: Phrase("a row of memory was remapped"),
    92: Phrase("a high rate of corrected memory errors"),
    94: Phrase("a contained memory error"),
    109: Phrase("a context switch that timed out"),
    154: Phrase("the driver requests a recovery"),
}
# DCMI's levels.
_ALARMS = {1: Phrase("minor"), 2: Phrase("major"), 3: Phrase("critical")}
_RESET = Phrase("reset the GPU (nvidia-smi -r) or reboot the node, and use another until then")


def faults(
    now: DeviceReading, first: DeviceReading | None = None, xids: Sequence[Xid] = ()
) -> list[DeviceFinding]:
    """Return the current faults. ``first`` is the first reading, for counters that count from there."""
    known = {gpu.index: gpu for gpu in (first.gpus if first is not None else ())}
    ports = {port.place: port for port in (first.ports if first is not None else ())}
    found = [one for gpu in now.gpus for one in _of_gpu(gpu, known.get(gpu.index))]
    found += [one for port in now.ports for one in _of_port(port, ports.get(port.place))]
    return [*found, *of_xids(xids)]


def of_xids(xids: Iterable[Xid]) -> Iterator[DeviceFinding]:
    """Yield one finding per GPU and code, however often it occurred."""
    for gpu, code in dict.fromkeys((xid.gpu, xid.code) for xid in xids):
        where = f"GPU {gpu}" if gpu >= 0 else Phrase("a GPU")
        if code in PROGRAM_XIDS:
            yield DeviceFinding(
                "gpu-xid-program",
                Grade.HEALTHY,
                where,
                Phrase("XID {code}, which a program's own kernels cause", code=code),
                "run once with CUDA_LAUNCH_BLOCKING=1; suspect the GPU only if it stays on this one",
                code,
            )
            continue
        grade = Grade.BAD if code in DEVICE_XIDS else Grade.SUSPECT
        meaning = (
            DEVICE_XIDS.get(code) or _SUSPECT_XIDS.get(code) or Phrase("see NVIDIA's list of XID errors")
        )
        hint = "use another node, and have this one checked" if grade is Grade.BAD else "watch this GPU"
        yield DeviceFinding(
            "gpu-xid", grade, where, Phrase("XID {code}: {meaning}", code=code, meaning=meaning), hint, code
        )


def _of_gpu(gpu: GpuHealth, first: GpuHealth | None) -> Iterator[DeviceFinding]:
    where = f"GPU {gpu.index}"
    if gpu.lost:
        yield DeviceFinding(
            "gpu-lost",
            Grade.BAD,
            where,
            Phrase("no longer answers ({problem})", problem=gpu.lost),
            "reboot the node, and use another until then",
        )
        return
    if gpu.recovery_action:
        action = RECOVERY_ACTIONS.get(
            gpu.recovery_action, Phrase("action {number}", number=gpu.recovery_action)
        )
        yield DeviceFinding(
            "gpu-recovery-action",
            Grade.BAD,
            where,
            Phrase("the driver requests {action}", action=action),
            _RESET,
        )
    if gpu.rows_failed:
        yield DeviceFinding(
            "gpu-rows-failed",
            Grade.BAD,
            where,
            "rows of its memory could not be remapped",
            "replace the GPU; use another node until then",
        )
    if gpu.rows_pending:
        yield DeviceFinding(
            "gpu-rows-pending",
            Grade.SUSPECT,
            where,
            "faulty rows of its memory wait for a reset to be remapped",
            "reset the GPU before the next job",
        )
    if gpu.alarm:
        level = _ALARMS.get(gpu.alarm, Phrase("unknown"))
        yield DeviceFinding(
            "npu-alarm",
            Grade.SUSPECT,
            where,
            Phrase("the Ascend driver reports an alarm ({level})", level=level),
            Phrase("npu-smi info -t health -i {index} shows it", index=gpu.index),
        )
    yield from _of_ecc(gpu, first, where)


def _of_ecc(gpu: GpuHealth, first: GpuHealth | None, where: str) -> Iterator[DeviceFinding]:
    """Return memory errors of this run; earlier ones do not count."""
    if first is None:
        return
    sram = _grown(gpu.sram_uncorrected, first.sram_uncorrected)
    memory = _grown(gpu.ecc_uncorrected, first.ecc_uncorrected) - sram
    if sram > 0:
        yield DeviceFinding(
            "gpu-ecc",
            Grade.BAD,
            where,
            Phrase("{errors} of its on-chip memory", errors=counted(sram, "uncorrectable error")),
            _RESET,
        )
    elif memory > 0:
        yield DeviceFinding(
            "gpu-ecc",
            Grade.SUSPECT,
            where,
            Phrase("{errors} of its memory", errors=counted(memory, "uncorrectable error")),
            "reset the GPU before the next job",
        )


def _of_port(port: PortHealth, first: PortHealth | None) -> Iterator[DeviceFinding]:
    if port.state != "ACTIVE" and first is not None and first.state == "ACTIVE":
        yield DeviceFinding(
            "rdma-port-lost",
            Grade.BAD,
            port.place,
            Phrase("was active, and is {state}", state=port.state.lower() or Phrase("gone")),
            "check cable, switch port and subnet manager (ibstat)",
        )


def _grown(now: int | None, first: int | None) -> int:
    return max(now - first, 0) if now is not None and first is not None else 0
