"""Which instructions this machine's processor knows.

A program compiled with ``-march=native`` dies of SIGILL on a processor that lacks one of them.
"""

from __future__ import annotations

from pathlib import Path

from platform_launch.hardware.kernel_files import text

# Flags of /proc/cpuinfo that stand for instructions GCC may choose by itself; all others describe virtual
# memory, interrupts, power or mitigations (Linux: arch/x86/include/asm/cpufeatures.h; GCC: x86 options).
_X86_INSTRUCTIONS = (
    "abm", "adx", "aes", "bmi1", "bmi2", "cmpccxadd", "f16c", "fma", "fma4", "gfni", "lahf_lm", "movbe",
    "pclmulqdq", "pni", "popcnt", "rdpid", "rdrand", "rdseed", "sha_ni", "sse4_1", "sse4_2", "sse4a", "ssse3",
    "tbm", "vaes", "vpclmulqdq", "xop",
)  # fmt: skip
_X86_FAMILIES = ("avx", "amx", "apx")


def instructions(proc_root: Path = Path("/proc")) -> frozenset[str]:
    """Return the kernel's names of the instruction sets; empty where the kernel does not tell."""
    for line in text(proc_root / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = value.split()
            return frozenset(f for f in flags if f in _X86_INSTRUCTIONS or f.startswith(_X86_FAMILIES))
        if name.strip() == "Features":  # Arm lists nothing else
            return frozenset(value.split())
    return frozenset()
