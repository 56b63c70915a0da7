"""Instruction sets of recorded processors."""

from __future__ import annotations

from pathlib import Path

from platform_launch.hardware.host import instructions


def recorded(root: Path, text: str) -> frozenset[str]:
    (root / "cpuinfo").write_text(text)
    return instructions(root)


def test_x86_flags_keep_instructions_and_drop_the_rest(tmp_path: Path) -> None:
    flags = (
        "fpu vme pae nx constant_tsc hypervisor ssse3 fma sse4_2 avx2 avx512f avx512_bf16 amx_tile ibrs smep"
    )
    found = recorded(
        tmp_path, f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
    )
    assert found == {"ssse3", "fma", "sse4_2", "avx2", "avx512f", "avx512_bf16", "amx_tile"}


def test_arm_lists_its_features(tmp_path: Path) -> None:
    assert recorded(tmp_path, "processor\t: 0\nFeatures\t: fp asimd sve2 bf16\n") == {
        "fp",
        "asimd",
        "sve2",
        "bf16",
    }


def test_a_kernel_that_does_not_tell_is_no_error(tmp_path: Path) -> None:
    assert instructions(tmp_path) == frozenset()
    assert recorded(tmp_path, "machine: something else\n") == frozenset()
