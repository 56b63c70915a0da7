"""``wheel build`` as a command, with a small source tree in DeepSpeed's place."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.wheels import note
from tests.lab.disk import disk, requires_mount
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S
from tests.wheels.conftest import FOR_THE_CPU, ROOT, Run

REFUSED = 67
USAGE = 64


@takes_long
def test_a_build_gives_wheel_note_and_log_and_nothing_of_an_earlier_one(
    wheel: Run, tiny_source: Path
) -> None:
    stale = tiny_source / "build/lib.linux-x86_64-cpython-311/deepspeed/stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    done = wheel(
        "build",
        "--source",
        str(tiny_source),
        "--ops",
        "cpu_adam,utils",
        "--output",
        "the wheels",
        as_process=True,
        DS_BUILD_AIO="1",
    )
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.removesuffix("\n"))
    assert path.parent.name == "the wheels"
    described = note.read(path)
    assert (described.ops, described.backend, described.deepspeed) == (("cpu_adam",), "cpu", "0.19.8")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert [name for name in names if "_op." in name] == [f"deepspeed/cpu_adam_op{_suffix()}"]
    assert not [name for name in names if "stale" in name]
    assert "cpu backend has no op utils" in done.stderr
    assert "DS_BUILD_AIO in the environment is ignored" in done.stderr
    assert "op 1 of 1, cpu_adam: 1 of 1 files, cpu_adam.cpp" in done.stderr
    assert f"platform-launch wheel install '{path}'" in done.stderr
    (log,) = path.parent.glob("deepspeed-build-*.log")
    assert "building 'deepspeed.cpu_adam_op' extension" in log.read_text()
    # Only the copy was built in.
    assert not list(tiny_source.rglob("*.so"))
    assert not list(tiny_source.rglob("git_version_info_installed.py"))


def _suffix() -> str:
    import sysconfig

    return str(sysconfig.get_config_var("EXT_SUFFIX"))


@requires_mount
def test_a_wheel_that_does_not_fit_where_it_was_ordered_is_kept_elsewhere(
    wheel: Run, tiny_source: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with disk(tmp_path / "full", "size=8k") as full:
        done = wheel(
            *("build", "--source", str(tiny_source), "--ops", "cpu_adam", "--output", str(full)),
            as_process=True,
            TMPDIR=str(elsewhere),
        )
        assert not list(full.glob("*.whl*"))
    assert done.returncode == InputError.exit_code
    assert done.stdout == ""
    said = f"the wheel is built, but cannot be written to {full}: {os.strerror(errno.ENOSPC)}"
    assert f"error: {said}" in done.stderr
    (kept,) = elsewhere.glob("*/*.whl")
    assert f"it is in {kept.parent}" in done.stderr
    assert note.read(kept).ops == ("cpu_adam",)


@pytest.mark.nightly
def test_a_compile_error_is_shown_in_the_compilers_words(wheel: Run, tiny_source: Path) -> None:
    (tiny_source / "csrc/cpu_adam.cpp").write_text("#include <vector>\nint broken = nonsense;\n")
    done = wheel("build", "--source", str(tiny_source), "--ops", "cpu_adam")
    assert done.returncode == REFUSED
    assert "error: the build failed at cpu_adam:" in done.stderr
    assert "cpu_adam.cpp:2:14: error: 'nonsense' was not declared" in done.stderr.replace("‘", "'").replace(
        "’", "'"
    )
    assert "2 | int broken = nonsense;" in done.stderr
    assert "hint:  the whole output: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_op_that_lacks_something_is_refused_before_anything_is_compiled(
    wheel: Run, tiny_source: Path
) -> None:
    done = wheel("build", "--source", str(tiny_source), "--ops", "cpu_adam,async_io", TINY_LACKS="async_io")
    assert done.returncode == REFUSED
    assert "[SUCCESS] op cpu_adam: can be compiled" in done.stderr
    assert "[ERROR] op async_io: async_io requires libtiny" in done.stderr
    assert "libaio-dev" in done.stderr
    assert "compiling" not in done.stderr


@pytest.mark.nightly
def test_an_op_left_out_in_silence_is_an_error_afterwards(wheel: Run, tiny_source: Path) -> None:
    done = wheel(
        "build", "--source", str(tiny_source), "--ops", "cpu_adam,async_io", TINY_LEAVES_OUT="async_io"
    )
    assert done.returncode == REFUSED
    assert "left async_io out of the wheel without failing" in done.stderr
    assert done.stdout == ""


def test_an_unknown_op_is_refused_with_those_known(wheel: Run, tiny_source: Path) -> None:
    done = wheel("build", "--source", str(tiny_source), "--ops", "cpu_adam,warp")
    assert done.returncode == USAGE
    assert "has no op warp: its cpu backend has async_io, cpu_adam\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--ops", "cpu_adam;touch /tmp/owned"), USAGE, "is not an op"),
        (("--ops", "$(id)"), USAGE, "is not an op"),
        (("--ops", "../csrc"), USAGE, "is not an op"),
        (("--ops", ""), USAGE, "nothing is not an op"),
        (("--ops", "utils", "--source", "TINY"), USAGE, "leaves nothing to compile"),
        (("--arch", "9.0;`id`"), USAGE, "is neither an architecture"),
        pytest.param(
            ("--arch", "9.0"),
            USAGE,
            "is a CPU build",
            marks=pytest.mark.skipif(bool(FOR_THE_CPU), reason="needs a torch built without CUDA"),
        ),
        (("--version", "0.19.8 --index-url http://evil"), USAGE, "is not a version of DeepSpeed"),
        (("--version", "-r/etc/passwd"), USAGE, "is not a version of DeepSpeed"),
        (("--source", "."), 66, "is not a DeepSpeed source tree"),
        (("--source", "TINY", "--version", "0.19.8"), USAGE, "exclude each other"),
        (("--output", "/proc/nowhere"), 66, "cannot be written"),
        (("--jobs", "0"), USAGE, "--jobs"),
    ],
)
def test_what_cannot_be_built_is_refused_in_words(
    wheel: Run, tiny_source: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = wheel("build", *(str(tiny_source) if word == "TINY" else word for word in arguments))
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_compiler_is_found_before_and_mended_in_words(
    wheel: Run, tiny_source: Path, tmp_path: Path
) -> None:
    done = wheel("build", "--source", str(tiny_source), "--ops", "cpu_adam", CXX="/no/such compiler")
    assert done.returncode == REFUSED
    assert not list(tmp_path.rglob("dist")), "a folder for wheels that were never built"
    assert "[ERROR] C++ compiler: /no/such compiler: " in done.stderr
    assert "hint:  C++ compiler: apt-get install g++" in done.stderr


@takes_long
def test_ctrl_c_on_a_terminal_ends_the_build_and_leaves_nothing(tmp_path: Path, tiny_source: Path) -> None:
    temporary = tmp_path / "temporary files"
    temporary.mkdir()
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "platform_launch",
        "wheel",
        "build",
        "--source",
        str(tiny_source),
        "--ops",
        "cpu_adam",
    ]
    variables = {
        **os.environ,
        **FOR_THE_CPU,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "TINY_SLEEPS_S": "60",
    }
    with subprocess.Popen(
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        said = b""
        while b"preparing" not in said:
            said += os.read(ours, 4096)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    os.set_blocking(ours, False)
    assert b"the build was stopped by SIGINT" in said + os.read(ours, 65536)
    os.close(ours)
    assert list(temporary.iterdir()) == []


def write_report(folder: Path, name: str, **changes: object) -> str:
    report = {
        "hostname": name,
        "python": "3.11.7",
        "torch": "2.13.0",
        "cuda": "13.0",
        "deepspeed": "0.19.8",
        "backend": "cuda",
        "ops": {"cpu_adam": "compiled"},
        "problems": {},
        "missing_requirements": [],
        "gpus": ["NVIDIA H100 80GB HBM3 (9.0)"],
        **changes,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(report))
    return str(path)


def test_compare_names_differences_and_exits_non_zero(wheel: Run, tmp_path: Path) -> None:
    one, same = write_report(tmp_path, "node a"), write_report(tmp_path, "node b")
    other = write_report(tmp_path, "node c", ops={"cpu_adam": "at run time"})
    assert wheel("check", "--compare", one, same).returncode == 0
    done = wheel("check", "--compare", one, other)
    assert (done.returncode, done.stdout) == (
        REFUSED,
        "op cpu_adam: compiled on node a, at run time on node c\n",
    )


def test_check_and_install_with_an_interpreter_that_is_none(wheel: Run) -> None:
    done = wheel("check", "--python", "/no/such/python")
    assert done.returncode == REFUSED
    assert "cannot list the packages of /no/such/python" in done.stderr
    assert wheel("install", "no such wheel.whl").returncode == 66
