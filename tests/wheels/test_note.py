"""The note in a wheel, and the nodes it refuses."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from platform_launch.errors import InputError, InstallationError
from platform_launch.wheels import note
from platform_launch.wheels.note import WheelNote, mismatches
from tests.wheels.conftest import CPU_TORCH, CUDA_TORCH, interpreter

INSTRUCTIONS = frozenset({"avx2", "avx512f", "fma"})
CPU_NOTE = WheelNote(
    wheel="deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl",
    deepspeed="0.19.8",
    ops=("cpu_adam",),
    backend="cpu",
    torch="2.13.0+cpu",
    cuda=None,
    cxx11_abi=True,
    python_tag="cp311",
    platform_tag="linux_x86_64",
    libc="glibc 2.36",
    architectures=(),
    compiler="gcc 12.2.0",
    nvcc=None,
    instructions=tuple(sorted(INSTRUCTIONS)),
    built="2025-06-01T12:00:00Z",
)
CUDA_NOTE = dataclasses.replace(
    CPU_NOTE, backend="cuda", torch="2.13.0+cu130", cuda="13.0", architectures=("8.0", "9.0"), nvcc="13.0"
)


def test_the_same_machine_fits() -> None:
    assert mismatches(CPU_NOTE, interpreter(), gpus=[], instructions=INSTRUCTIONS) == []
    node = interpreter(CUDA_TORCH)
    assert mismatches(CUDA_NOTE, node, gpus=[(8, 6), (9, 0)], instructions=INSTRUCTIONS | {"amx_tile"}) == []


def test_a_newer_patch_of_torch_and_a_newer_c_library_fit() -> None:
    node = interpreter(dataclasses.replace(CPU_TORCH, version="2.13.1+cpu"), libc="glibc 2.39")
    assert mismatches(CPU_NOTE, node, gpus=[], instructions=INSTRUCTIONS) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"python_tag": "cp312"}, "Python: the wheel is built for cp311, this node has cp312"),
        ({"platform_tag": "linux_aarch64"}, "platform: the wheel is built for linux_x86_64"),
        ({"libc": "glibc 2.28"}, "C library: built with glibc 2.36, this node has the older glibc 2.28"),
        ({"torch": None, "torch_problem": "torch is not installed"}, "torch is not installed"),
        (
            {"torch": dataclasses.replace(CPU_TORCH, version="2.12.1")},
            "built for 2.13.0+cpu, this node has 2.12.1",
        ),
        ({"torch": dataclasses.replace(CPU_TORCH, cuda="13.0")}, "built for none, this node has 13.0"),
        ({"torch": dataclasses.replace(CPU_TORCH, cxx11_abi=False)}, "_GLIBCXX_USE_CXX11_ABI"),
    ],
)
def test_another_python_torch_or_system_is_named(changes: dict[str, object], reason: str) -> None:
    found = mismatches(CPU_NOTE, interpreter(**changes), gpus=[], instructions=INSTRUCTIONS)  # type: ignore[arg-type]
    assert len(found) == 1
    assert reason in found[0]


def test_an_older_processor_is_named_with_what_it_lacks() -> None:
    found = mismatches(CPU_NOTE, interpreter(), gpus=[], instructions=frozenset({"avx2", "fma"}))
    assert found == ["processor: built for one that knows avx512f; this one does not"]


def test_gpus_without_code_for_them_are_named() -> None:
    found = mismatches(CUDA_NOTE, interpreter(CUDA_TORCH), gpus=[(9, 0), (12, 0)], instructions=INSTRUCTIONS)
    assert found == ["GPUs: built for 8.0, 9.0, which does not run on a GPU of 12.0"]


def test_a_cpu_wheel_on_a_gpu_node_is_refused_since_deepspeed_would_ignore_its_ops() -> None:
    found = mismatches(CPU_NOTE, interpreter(), gpus=[(9, 0)], instructions=INSTRUCTIONS)
    assert "ignores" in found[0]


def written(folder: Path, note_text: str | None = None) -> Path:
    """A wheel that carries CPU_NOTE, or another text in its place."""
    wheel = folder / CPU_NOTE.wheel
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("deepspeed/__init__.py", "")
        archive.writestr("deepspeed-0.19.8.dist-info/RECORD", "deepspeed-0.19.8.dist-info/RECORD,,\n")
        if note_text is not None:
            archive.writestr("deepspeed-0.19.8.dist-info/platform_launch.json", note_text)
    if note_text is None:
        note.embed(wheel, CPU_NOTE)
    return wheel


def test_what_is_written_is_read_again_wherever_the_wheel_is_copied_to(tmp_path: Path) -> None:
    wheel = written(tmp_path)
    assert note.read(wheel.rename(tmp_path / "elsewhere.whl")) == CPU_NOTE


def test_the_note_is_in_the_record_so_that_pip_takes_it_away_again(tmp_path: Path) -> None:
    with zipfile.ZipFile(written(tmp_path)) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == "deepspeed-0.19.8.dist-info/RECORD"
        rows = list(csv.reader(archive.read("deepspeed-0.19.8.dist-info/RECORD").decode().splitlines()))
        name, digest, size = rows[0]
        content = archive.read(name)
    assert int(size) == len(content)
    assert digest == "sha256=" + urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    assert rows[1:] == [["deepspeed-0.19.8.dist-info/RECORD", "", ""]]


def test_a_wheel_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    wheel = written(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(InputError, match="cannot be read as a wheel") as refused:
        note.read(wheel)
    assert "copy it again" in refused.value.hint


def test_a_wheel_from_elsewhere_is_refused_and_one_that_is_not_there(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with pytest.raises(InputError, match="there is no wheel"):
        note.read(wheel)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("numpy-2.0.dist-info/RECORD", "")
    with pytest.raises(InputError, match="has no note of what it was built for"):
        note.read(wheel)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"wheel": 1}', "\x00", '{"ops": 3}', '{"ops": [], "colour": "blue"}']
)
def test_a_note_of_another_version_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"the note in .* cannot be read"):
        note.read(written(tmp_path, text))


def test_the_ops_are_read_from_the_wheel_itself(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "deepspeed/git_version_info_installed.py",
            "version='0.19.8'\ninstalled_ops={'cpu_adam': 1, 'utils': False}\naccelerator_name='cpu'\n",
        )
    assert note.read_content(wheel) == ("0.19.8", "cpu", ("cpu_adam",))


def test_a_file_that_is_no_wheel_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"no archive")
    with pytest.raises(InstallationError, match="has no list of its ops"):
        note.read_content(path)
