"""start_multinode_platform.sh: which interpreter it finds, and what it hands on."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform_launch.why.explaining import explain
from platform_launch.why.sources import LogSource
from tests.lab.needs import requires_pid_namespace
from tests.lab.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parent.parent
requires_dash = pytest.mark.skipif(shutil.which("dash") is None, reason="needs dash")
SCRIPT = "start_multinode_platform.sh"
# Takes the place of an environment's interpreter, and prints its own path and its arguments.
INTERPRETER = """#!/bin/bash
printf '%s\\n' "$0" "$@"
printf 'CUSTOM=%s\\n' "$CUSTOM"
printf 'PATH=%s\\n' "${PATH%%:*}"
"""
CONDA_SH = """conda() {
  local prefix="$CONDA_HOME_OF_TEST/envs/$2"
  [ "$1" = activate ] && [ -d "$prefix/conda-meta" ] || { echo "no environment $2" >&2; return 1; }
  export CONDA_PREFIX="$prefix"
}
"""


def interpreter(prefix: Path) -> Path:
    """Make an environment whose interpreter reports itself."""
    python = prefix / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(INTERPRETER)
    python.chmod(0o755)
    return prefix


def conda(root: Path, *names: str) -> Path:
    """Make a conda installation with environments of these names."""
    (root / "etc" / "profile.d").mkdir(parents=True)
    (root / "etc" / "profile.d" / "conda.sh").write_text(CONDA_SH)
    for name in names:
        (interpreter(root / "envs" / name) / "conda-meta").mkdir()
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the entrypoint under a path with a space, with a settings file of its own."""
    root = tmp_path / "my project"
    (root / "configs").mkdir(parents=True)
    (root / "platform_launch").mkdir()
    shutil.copy(ROOT / SCRIPT, root / SCRIPT)
    (root / "configs" / "platform.env").write_text("# nothing\n")
    return root


def start(
    project: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    script: Path | None = None,
    shell: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    home = str(project.parent / "home")
    return subprocess.run(
        [*shell, str(script or project / SCRIPT), *arguments],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, **(env or {})},
        capture_output=True,
        text=True,
        cwd="/",
        timeout=LIMIT_S,
        check=False,
    )


def use_real_package(project: Path) -> None:
    """Let the project's entrypoint start this package."""
    (project / "platform_launch").rmdir()
    (project / "platform_launch").symlink_to(ROOT / "platform_launch")


def settings(project: Path, text: str) -> None:
    (project / "configs" / "platform.env").write_text(text)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=plain=1", "plain=1"),
        ('export A="two words"', "two words"),
        ("  A = spaced  ", "spaced"),
        ("A='q\"$HOME'", 'q"$HOME'),
        ("A=$(touch pwned)", "$(touch pwned)"),
        ('A="`touch pwned`"\r', "`touch pwned`"),
        ("A=it's", "it's"),
        ("A=a b", "a b"),
        ('A=""', ""),
    ],
)
def test_settings_are_taken_as_people_paste_them(project: Path, line: str, value: str) -> None:
    interpreter(project / ".venv")
    (project / ".venv/bin/python3").write_text('#!/bin/sh\nprintf "%s" "$A"\n')
    settings(project, f"# note\n\n; another\n{line}\n")
    done = start(project)
    assert (done.stdout, done.stderr) == (value, "")
    assert start(project, env={"A": "outside"}).stdout == "outside"


def test_names_that_settings_gave_are_told_to_the_launcher(project: Path) -> None:
    interpreter(project / ".venv")
    (project / ".venv/bin/python3").write_text('#!/bin/sh\nprintf "%s" "$PLATFORM_LAUNCH_FROM_FILE"\n')
    settings(project, "A=1\nB=2\nC=3\n")
    assert start(project, env={"B": "outside"}).stdout.split() == ["A", "C"]


@pytest.mark.parametrize(
    "line", ['A="open', "A='x' y", "NAME value", "1A=x", "export A", "source /etc/profile", "A='\""]
)
def test_settings_that_cannot_be_read_are_refused_by_their_line(project: Path, line: str) -> None:
    interpreter(project / ".venv")
    settings(project, f"# note\nB=1\n{line}\n")
    done = start(project)
    assert done.returncode == 67
    assert "platform.env, line 3 does not set a variable: " in done.stderr
    assert "hint:  expected NAME=value" in done.stderr


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [({"LANG": "zh_CN.UTF-8"}, ()), ({"LC_ALL": "C"}, ("--lang", "zh")), ({}, ("--lang=zh", "--no-doctor"))],
)
def test_a_refusal_is_in_the_language_of_its_reader(
    project: Path, variables: dict[str, str], arguments: tuple[str, ...]
) -> None:
    use_real_package(project)
    settings(project, "A=1\n{file} $(id) \\'\n")
    done = start(project, *arguments, env=variables)
    assert done.returncode == 67
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"错误：{project}/configs/platform.env 第 2 行不是变量设置：'{{file}} $(id) ")
    assert error.endswith(" [refused-installation]")
    assert hint.startswith("提示：应为 NAME=value 或 export NAME=value；")
    verdict = explain([LogSource("pod.log", io.BytesIO(done.stderr.encode()))])
    assert (verdict.cause, verdict.details["hint"]) == ("launch_refused", hint.removeprefix("提示："))
    english = start(project, *arguments, env={**variables, "PLATFORM_LAUNCH_LANG": "en"})
    assert ("error: " in english.stderr) == ("--lang" not in " ".join(arguments))


def test_arguments_reach_python_as_they_were_typed(project: Path) -> None:
    interpreter(project / ".venv")
    hostile = ["--job-name", "a b", "--", "$(touch x)", 'quo"te', "new\nline", ""]
    done = start(project, *hostile)
    expected = [str(project / "platform_launch" / "__main__.py"), "run", *hostile]
    assert done.stdout.startswith("\n".join([str(project / ".venv/bin/python3"), *expected]) + "\n")


def test_without_python_a_refusal_is_in_english(project: Path, tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "env", "readlink"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    use_real_package(project)
    settings(project, "A=1\n{file} } { $(id)\n")
    done = start(project, env={"PATH": str(tmp_path), "LANG": "zh_CN.UTF-8"})
    assert done.returncode == 67
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: {project}/configs/platform.env, line 2 does not set a variable: ")
    assert error.endswith("'{file} } { $(id)' [refused-installation]")
    assert hint.startswith("hint:  expected NAME=value or export NAME=value;")


@pytest.mark.parametrize(
    ("example", "arguments", "expected"),
    [
        ("none-of-ours", (), "'none-of-ours' is not one of 'taehv', 'ddp', 'jax'"),
        ("none-of-ours", ("--no-roll-call",), "nothing to run"),
        ("", (), "nothing to run"),
    ],
)
def test_without_any_argument_it_runs_the_example_that_the_settings_name(
    project: Path, example: str, arguments: tuple[str, ...], expected: str
) -> None:
    use_real_package(project)
    settings(project, f"PLATFORM_LAUNCH_EXAMPLE={example}\n")
    done = start(project, *arguments, env={"VIRTUAL_ENV": sys.prefix})
    assert done.returncode == 64
    assert expected in done.stderr


def test_it_works_through_a_symlink(project: Path, tmp_path: Path) -> None:
    interpreter(project / ".venv")
    link = tmp_path / "bin" / "launch"
    link.parent.mkdir()
    link.symlink_to(Path("..") / "my project" / SCRIPT)
    assert str(project / "platform_launch" / "__main__.py") in start(project, script=link).stdout


def test_the_environment_s_tools_come_first_on_the_path(project: Path) -> None:
    interpreter(project / ".venv")
    assert f"PATH={project}/.venv/bin\n" in start(project).stdout


def test_an_active_environment_comes_before_a_named_one(project: Path, tmp_path: Path) -> None:
    active = interpreter(tmp_path / "active")
    named = interpreter(tmp_path / "named")
    settings(project, f"PLATFORM_LAUNCH_VENV={named}\n")
    assert start(project, env={"VIRTUAL_ENV": str(active)}).stdout.startswith(f"{active}/")
    assert start(project, env={"CONDA_PREFIX": str(active), "CONDA_DEFAULT_ENV": "mine"}).stdout.startswith(
        f"{active}/"
    )


def test_conda_s_base_gives_way_to_an_environment_that_is_asked_for(project: Path, tmp_path: Path) -> None:
    base = interpreter(tmp_path / "conda")
    named = interpreter(tmp_path / "named")
    image = {"CONDA_PREFIX": str(base), "CONDA_DEFAULT_ENV": "base"}
    assert start(project, env=image).stdout.startswith(f"{base}/")
    settings(project, f"PLATFORM_LAUNCH_VENV={named}\n")
    assert start(project, env=image).stdout.startswith(f"{named}/")


def test_an_installed_entrypoint_starts_in_the_environment_that_it_is_installed_in(
    project: Path, tmp_path: Path
) -> None:
    own = interpreter(tmp_path / "own env")
    installed = own / "lib" / "python3.11" / "site-packages" / "platform_launch" / "_project"
    installed.parent.mkdir(parents=True)
    shutil.copytree(project, installed, ignore=shutil.ignore_patterns("platform_launch"))
    script = installed / SCRIPT
    assert start(project, script=script).stdout.startswith(f"{own}/bin/python3\n")
    base = {"CONDA_PREFIX": str(interpreter(tmp_path / "conda")), "CONDA_DEFAULT_ENV": "base"}
    assert start(project, script=script, env=base).stdout.startswith(f"{own}/bin/python3\n")
    active = interpreter(tmp_path / "active")
    done = start(project, script=script, env={"VIRTUAL_ENV": str(active)})
    assert done.stdout.startswith(f"{active}/bin/python3\n")
    named = {"PLATFORM_LAUNCH_VENV": str(interpreter(tmp_path / "named"))}
    assert start(project, script=script, env=named).stdout.startswith(f"{tmp_path}/named/bin/python3\n")


@pytest.mark.parametrize("given", ["root", "CONDA_EXE", "home"])
def test_a_named_conda_environment_is_found_where_conda_lies(
    project: Path, tmp_path: Path, given: str
) -> None:
    where = tmp_path / "home" / "miniconda3" if given == "home" else tmp_path / "opt conda"
    root = conda(where, "tiny-vae", "other")
    settings(project, "PLATFORM_LAUNCH_CONDA_ENV=tiny-vae\n")
    env = {"CONDA_HOME_OF_TEST": str(root)}
    if given == "root":
        env["PLATFORM_LAUNCH_CONDA_ROOT"] = str(root)
    if given == "CONDA_EXE":
        env["CONDA_EXE"] = f"{root}/bin/conda"
    done = start(project, env=env)
    assert done.stdout.startswith(f"{root}/envs/tiny-vae/bin/python3\n"), done.stderr


def test_an_unknown_conda_environment_is_refused_with_those_found(project: Path, tmp_path: Path) -> None:
    root = conda(tmp_path / "conda", "tiny-vae", "other")
    env = {"CONDA_HOME_OF_TEST": str(root), "PLATFORM_LAUNCH_CONDA_ROOT": str(root)}
    done = start(project, env={**env, "PLATFORM_LAUNCH_CONDA_ENV": "tiny-vea"})
    assert done.returncode == 67
    assert f"error: conda environment 'tiny-vea' is not under {root}; found: other tiny-vae" in done.stderr
    assert "hint:" in done.stderr


def test_a_conda_root_without_conda_is_refused_and_no_other_is_tried(project: Path, tmp_path: Path) -> None:
    conda(tmp_path / "home" / "miniconda3", "tiny-vae")
    env = {"PLATFORM_LAUNCH_CONDA_ENV": "tiny-vae", "PLATFORM_LAUNCH_CONDA_ROOT": "/nowhere"}
    done = start(project, env=env)
    assert done.returncode == 67
    assert "under /nowhere" in done.stderr


def test_a_missing_venv_is_refused_with_those_beside_it(project: Path, tmp_path: Path) -> None:
    (tmp_path / "venvs" / "good").mkdir(parents=True)
    (tmp_path / "venvs" / "good" / "pyvenv.cfg").touch()
    done = start(project, env={"PLATFORM_LAUNCH_VENV": str(tmp_path / "venvs" / "bad")})
    assert done.returncode == 67
    assert "found beside it: good" in done.stderr


def test_settings_are_taken_literally_and_outside_wins(project: Path, tmp_path: Path) -> None:
    interpreter(project / ".venv")
    settings(project, f'CUSTOM=$(touch {tmp_path}/pwned) `id` "q"\r\n# CUSTOM=2\n')
    assert f'CUSTOM=$(touch {tmp_path}/pwned) `id` "q"\n' in start(project).stdout
    assert not (tmp_path / "pwned").exists()
    assert "CUSTOM=outside\n" in start(project, env={"CUSTOM": "outside"}).stdout
    assert "CUSTOM=\n" in start(project, env={"CUSTOM": ""}).stdout


def test_another_settings_file_can_be_named(project: Path, tmp_path: Path) -> None:
    interpreter(project / ".venv")
    (tmp_path / "other.env").write_text("CUSTOM=other")  # no newline at the end
    env = {"PLATFORM_LAUNCH_ENV_FILE": str(tmp_path / "other.env")}
    assert "CUSTOM=other\n" in start(project, env=env).stdout
    env["PLATFORM_LAUNCH_ENV_FILE"] = str(tmp_path / "none.env")
    refused = start(project, env=env)
    assert refused.returncode == 67
    assert "none.env cannot be read" in refused.stderr
    verdict = explain([LogSource("pod.log", io.BytesIO(refused.stderr.encode()))])
    assert verdict.cause == "launch_refused"
    assert verdict.details["hint"] == "restore it, or set PLATFORM_LAUNCH_ENV_FILE"


def test_python_replaces_the_shell_so_that_signals_reach_it(project: Path) -> None:
    python = interpreter(project / ".venv") / "bin" / "python3"
    python.write_text("#!/bin/bash\necho $$\nexec sleep 30\n")
    process = subprocess.Popen(
        [str(project / SCRIPT)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": "/"},
    )
    assert process.stdout is not None
    with process, process.stdout:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == -signal.SIGTERM


@requires_pid_namespace
def started_at(command: list[str], env: dict[str, str], word: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a container's first process; return it once it runs ``word`` with signals held back.

    The number is -1 where it was past that when somebody looked.
    """
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def first() -> int:
        for pid in children.read_text().split():
            runs = Path(f"/proc/{pid}/cmdline").read_text()
            held = "SigBlk:\t0000000000004007" in Path(f"/proc/{pid}/status").read_text()
            if held and word in runs:
                return int(pid)
            if "__main__.py" in runs:
                return -1
        return 0

    return process, until(first, pause_s=0.001)


def test_a_request_to_end_is_heeded_from_the_first_line_on_where_the_kernel_would_drop_it(
    project: Path, tmp_path: Path
) -> None:
    """The first process of a container gets no signal it has no handler for: here it comes at every stage."""
    use_real_package(project)
    (tmp_path / "train.py").write_text("import time\nprint('training', flush=True)\ntime.sleep(600)\n")
    command = [
        *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", str(project / SCRIPT), "--no-doctor"),
        *(
            "--launcher",
            "python",
            "--script",
            str(tmp_path / "train.py"),
            "--log-dir",
            str(tmp_path / "logs"),
        ),
    ]
    env = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": sys.prefix, "HOME": "/"}
    begun = ("start_multinode_platform.sh", "__main__.py")
    for word, pause_s in ((begun[0], 0.0), (begun[0], 0.02), (begun[1], 0.0), (begun[1], 0.3)):
        process, pid = started_at(command, env, word)
        while pid < 0:  # a busy machine looked too late
            process.kill()
            process.wait(LIMIT_S)
            process, pid = started_at(command, env, word)
        time.sleep(pause_s)
        os.kill(pid, signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143


@requires_dash
def test_what_another_shell_starts_goes_on_with_bash(project: Path) -> None:
    interpreter(project / ".venv")
    done = start(project, "--nnodes", "2 3", shell=("dash",))
    assert done.stdout.splitlines()[2:4] == ["run", "--nnodes"], done.stderr
    assert "2 3" in done.stdout


@requires_dash
def test_without_bash_another_shell_says_so(project: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [shutil.which("dash") or "dash", str(project / SCRIPT)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 67
    assert "needs bash, and there is none on PATH [refused-installation]\n" in done.stderr
    assert "hint:  install bash (请安装 bash)\n" in done.stderr


def test_the_entrypoint_can_be_reviewed() -> None:
    lines = (ROOT / SCRIPT).read_text().splitlines()
    assert len(lines) <= 85
    assert max(map(len, lines)) <= 100
