"""The command line as a user meets it: its output and its exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from platform_launch.cli import main
from platform_launch.cli.launch_options import GROUPS, grouped
from platform_launch.cli.run import command as run_command
from tests.conftest import FakeNvml
from tests.lab.in_process import run_in_process
from tests.lab.needs import takes_long
from tests.lab.nvml import fake
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
TWO_NODES = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def run(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process."""
    return run_in_process(arguments, {**BARE, **(env or {})}, cwd)


def launch(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command line as a process."""
    return subprocess.run(
        [sys.executable, str(ROOT / "platform_launch" / "__main__.py"), *arguments],
        env={**BARE, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_the_old_package_of_nvml_beside_ours_is_not_spoken_of(tmp_path: Path) -> None:
    # As pynvml 13 does it, by a file that Python reads at its start.
    (tmp_path / "sitecustomize.py").write_text(
        """
import sys, warnings
class Redirect:
    def find_spec(self, name, path, target=None):
        if name == "pynvml":
            warnings.warn("The pynvml package is deprecated. Please install nvidia-ml-py.", FutureWarning, 2)
sys.meta_path.insert(0, Redirect())
"""
    )
    done = launch("--version", env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_a_command_is_still_imported_shows_no_traceback(tmp_path: Path) -> None:
    # A dependency that presses Ctrl-C while it is imported: the slowest moment of a start, made certain.
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    project = (ROOT / "pyproject.toml").read_text()
    entries = re.findall(r'^([\w-]+) = "(platform_launch\S*):(\w+)"$', project, re.MULTILINE)
    assert {name for name, _, _ in entries} == {"platform-launch", "dist-launch", "procguard"}
    for name, module, function in entries:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; from {module} import {function}; sys.exit({function}())"],
            env={"PYTHONPATH": str(tmp_path)},
            cwd=ROOT,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b""), name


def test_a_word_that_is_no_command_does_not_disturb_the_shell_that_completes_the_line() -> None:
    words = {"COMP_WORDS": "platform-launch rum ", "COMP_CWORD": "2"}
    done = launch(env={"_PLATFORM_LAUNCH_COMPLETE": "bash_complete", **words})
    assert (done.returncode, done.stderr) == (0, "")


def test_json_stands_alone_on_stdout() -> None:
    done = run(
        "run",
        "--example",
        "taehv",
        "--print-env",
        "--format",
        "json",
        "--assume-gpus",
        "8xH100",
        env=TWO_NODES,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["topology"]["world_size"] == 16


def test_a_job_of_sixteen_gpus_can_be_rehearsed_anywhere() -> None:
    done = run("run", "--example", "taehv", "--print-env", "--assume-gpus", "8xH100", env=TWO_NODES)
    assert "16 processes" in done.stdout
    assert "deepspeed_16gpu.yaml" in done.stdout
    assert "taehv_config_16gpu_h100.py" in done.stdout


def test_a_rehearsal_imports_nothing_heavy() -> None:
    program = (
        "import sys;"
        "from platform_launch.cli import main;"
        "commands = (['topology'], ['platforms'], ['run', '--example', 'taehv', '--print-env']);"
        "[main(words) for words in commands];"
        "heavy={'torch','accelerate','deepspeed','transformers','numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_topology_prints_the_reading_alone() -> None:
    reading = json.loads(run("topology", "--format", "json", env=TWO_NODES).stdout)
    assert (reading["nnodes"], reading["node_rank"], reading["master_addr"]) == (2, 1, "10.0.0.1")
    assert reading["level"] == "node"
    assert reading["sources"]["node_rank"] == "RANK"
    assert (reading["nproc_per_node"], reading["world_size"]) == (1, 2), "as a launch here, without a GPU"


def test_topology_counts_gpus_where_the_platform_does_not_say(fake_nvml: FakeNvml) -> None:
    reading = json.loads(
        launch("topology", "--format", "json", env={**TWO_NODES, **fake_nvml(*fake.h100s(8))}).stdout
    )
    assert (reading["nproc_per_node"], reading["world_size"]) == (8, 16)


def test_a_refused_topology_is_an_error_with_a_hint() -> None:
    env = {**TWO_NODES, "RANK": "2"}
    done = run("topology", "--format", "json", env=env)
    assert done.returncode == 65
    assert {"error", "hint"} <= set(json.loads(done.stdout))
    done = run("run", env=env)
    assert done.returncode == 65
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


WRONG_COMMAND_LINES = [
    (["run", "--nodez", "2"], "--nodez"),
    (["run", "train.py"], "name what to run with --script FILE, --module NAME, or -- COMMAND"),
    (["run", "--script", "train.py", "--lr", "1e-4"], "put the program's own arguments after --"),
    (["run", "--module=train", "more"], "hint:  put the program's own arguments after --"),
    (["run", "--scrip", "train.py"], "--script"),
    (["run", "--assume-gpus", "8xH100"], "--print-env"),
    (["run", "--nnodes", "two"], "--nnodes"),
    (["run", "--master-port", "99999999"], "--master-port"),
    (["run", "--hang-after", "nan"], "'nan' is not a finite number"),
    (["quarantine", "add", "--hours", "0", "gn1"], "--hours"),
    (["procguard", "ctl", "runs", "g", "0"], "ctl runs --help"),
    (["topology", "one", "two"], "see platform-launch topology --help"),
    (["job"], "trainjob"),
    (["quarantine", "add", "gn1"], "--reason"),
    (["run", "--nnodes"], "--nnodes"),
    (["run", "--platform", "nonsense"], "nonsense"),
    (["run", "--print-env", "--assume-gpus", "8xFoo"], "8xFoo"),
    (["walk"], "hint:  see platform-launch --help"),
    (["job", "slurmm"], "trainjob"),
    (["simulate", "--nodez", "2"], "--nodez"),
    (["simulate", "--node-rank", "0"], "--node-rank cannot be used with simulate"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG_COMMAND_LINES)
def test_a_wrong_command_line_is_an_error_with_a_hint(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 64
    errors = capfd.readouterr().err
    assert said in errors
    assert errors.startswith("error: ")
    assert errors.splitlines()[-1].startswith("hint:  ")


def test_only_an_option_of_nearly_the_same_name_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--script", "train.py", "--lr", "1e-4"]) == 64
    assert "Did you mean" not in capsys.readouterr().err
    assert main(["run", "--nnodez", "2"]) == 64
    assert "--nnodes" in capsys.readouterr().err


def test_a_wrong_command_line_ends_the_process_without_a_traceback() -> None:
    done = launch("run", "--nodez", "2")
    assert done.returncode == 64
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("arguments", [["why"], ["logs"], ["wheel", "install"], ["run", "--script"]])
def test_a_path_that_leads_nowhere_is_one_error_and_one_hint(arguments: list[str]) -> None:
    done = run(*arguments, "n" * 300)  # longer than a name may be: refused to root too
    assert done.returncode == 66
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


def test_output_that_finds_no_room_is_one_error_and_one_hint() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "platform_launch", "platforms"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 66
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


def test_a_simulation_refuses_a_missing_script_once_and_before_any_node(tmp_path: Path) -> None:
    done = run("simulate", "--script", "nowhere.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr.splitlines()[0] == (
        "error: nowhere.py does not exist: expected a file (--script, relative to the working directory "
        f"{tmp_path}) [refused-input]"
    )


def test_arguments_after_the_dashes_belong_to_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    arguments = ["run", "--print-env", "--format", "json", "--script", str(script), "--", "--help", "--", "x"]
    assert json.loads(run(*arguments).stdout)["argv"][-3:] == ["--help", "--", "x"]


def test_every_command_has_help() -> None:
    from platform_launch.cli import COMMANDS

    listed = run("--help").stdout
    for name in COMMANDS:
        assert name in listed
        helped = run(name, "--help")
        assert helped.returncode == 0, helped.stderr
        assert "Usage: platform-launch" in helped.stdout
        *_, commands = helped.stdout.partition("\nCommands:")
        assert "..." not in commands, "a line of the list is cut short"


@pytest.mark.parametrize("group", [[], ["wheel"]])
def test_a_group_without_a_command_shows_its_help_and_is_no_success(group: list[str]) -> None:
    done = run(*group)
    assert done.returncode == 64
    assert done.stderr == run(*group, "--help").stdout


def test_a_driver_that_errs_is_not_a_cpu_machine(fake_nvml: FakeNvml) -> None:
    done = launch("run", "--print-env", env=fake_nvml(*fake.h100s(8), fake.fail("nvmlInitWithFlags", 18)))
    assert done.returncode == 69
    assert "18" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """An interpreter that has our own dependencies and nothing else."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    site = next((bare / "lib").glob("python*/site-packages"))
    ours = Path(next(path for path in sys.path if path.endswith("site-packages")))
    for name in ("click", "psutil", "pynvml.py", "rich", "yaml", "_yaml", "pygments", "markdown_it", "mdurl"):
        if (ours / name).exists():
            (site / name).symlink_to(ours / name)
    return bare / "bin" / "python3"


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_an_interpreter_without_torch_is_told_so_at_once(
    without_torch: Path, tmp_path: Path, command: str
) -> None:
    logs = ("--example", "taehv", "--log-dir", str(tmp_path / "logs"))
    done = subprocess.run(
        [str(without_torch), str(ROOT / "platform_launch" / "__main__.py"), command, *logs],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 67
    assert done.stderr.count(f"error: {without_torch} has no torch, accelerate, ") == 1
    assert f"-m pip install '{ROOT}[train]'" in done.stderr
    assert (tmp_path / "logs").exists() == (command == "run"), "a simulation starts no node"


def test_procguard_s_server_starts_as_a_module_with_its_config(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "procguard", "--config", str(tmp_path / "nowhere.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 66
    assert f"{tmp_path}/nowhere.yaml" in done.stderr


@pytest.mark.parametrize("started", ["platform_launch/__main__.py", "procguard.py"])
def test_an_interpreter_without_our_own_dependencies_is_told_in_one_line(
    tmp_path: Path, started: str
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    packages = "click, psutil, nvidia-ml-py, rich, pyyaml"
    chinese = packages.replace(", ", "、")
    for language, error, hint in (
        ("en", f"error: {bare}/bin/python3 has no {packages}, which platform_launch needs", "hint:  "),
        ("zh", f"错误：{bare}/bin/python3 中没有 platform_launch 所需的 {chinese}", "提示："),
    ):
        done = subprocess.run(
            [str(bare / "bin" / "python3"), str(ROOT / started), "run"],
            capture_output=True,
            text=True,
            env={"PLATFORM_LAUNCH_LANG": language},
            check=False,
        )
        assert done.returncode == 67
        assert done.stderr.startswith(f"{error} [refused-installation]\n{hint}")
        assert f"{bare}/bin/python3 -m pip install {packages.replace(',', '')}" in done.stderr


@takes_long
def test_an_installed_launcher_finds_its_files_and_keeps_logs_where_it_was_started(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(wheels), str(ROOT)),
        ],
        check=True,
    )
    wheel = next(wheels.glob("*.whl"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
        check=True,
    )
    entrypoint = site / "platform_launch" / "_project" / "start_multinode_platform.sh"
    done = subprocess.run(
        ["bash", str(entrypoint), "--example", "taehv", "--print-env", "--format", "json"],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["log_path"].startswith(f"{tmp_path}/logs/")
    assert plan["training"]["config"].startswith(f"{site}/platform_launch/_project/configs/")


def test_every_option_of_run_is_in_one_group_of_its_help() -> None:
    groups = grouped(run_command.get_params(click.Context(run_command)))
    assert groups.pop("") == []
    assert list(groups) == ["Launch", "Topology", "Recovery", "Monitoring", "Output"]
    assert sum(map(len, GROUPS.values())) == sum(map(len, groups.values()))
    helped = launch("run", "--help").stdout
    titles = [helped.index(f"\n{title}:\n") for title in groups]
    assert titles == sorted(titles)
