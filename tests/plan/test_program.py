"""What runs: scripts, modules and commands, and what is refused before any node waits."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.program import Program, choose_program
from platform_launch.plan.render import render_json, render_table
from platform_launch.plan.request import EXAMPLES, Form, Request
from platform_launch.project import project_root
from platform_launch.topology import Overrides
from tests.plan.machines import machine

PATH = {"PATH": "/usr/bin:/bin"}


def request(*command: str, **fields: Any) -> Request:
    fields = {"arguments": command, "python": sys.executable, **fields}
    return Request(project_root(), fields.pop("python"), "/local", "now", Path("/logs"), **fields)


def chosen(*command: str, env: dict[str, str] | None = None, **fields: Any) -> Program:
    return choose_program(request(*command, **fields), Environment(PATH if env is None else env))


def plan(*command: str, nodes: int = 1, gpus: int = 4, **fields: Any) -> LaunchPlan:
    overrides = Overrides(nnodes=nodes, node_rank=nodes - 1, master_addr="gn0", master_port=29501)
    asked = request(*command, overrides=overrides, **fields)
    return build_plan(Environment(PATH, hostname="gn0"), machine(gpus), asked)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package ``pkg`` in the working directory, which must not be imported."""
    folder = tmp_path / "pkg"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "train.py").write_text("from .other import x\n")
    (folder / "inner" / "deep.py").touch()
    (tmp_path / "loose" / "below").mkdir(parents=True)
    (tmp_path / "loose" / "below" / "job.py").touch()
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("launcher", [None, "accelerate", "torchrun", "python", "jax"])
def test_nothing_to_run_is_an_error_that_lists_the_three_forms(launcher: str | None) -> None:
    with pytest.raises(UsageError, match=r"--script FILE, --module NAME, and -- COMMAND") as refused:
        plan(launcher=launcher)
    assert "llamafactory-cli train" in refused.value.hint


def test_options_of_a_forgotten_script_are_not_taken_for_a_command() -> None:
    with pytest.raises(UsageError, match=r"'--lr' follows -- but is not a command"):
        plan("--lr", "1")


@pytest.mark.parametrize("second", ["module", "example"])
def test_two_forms_are_refused(second: str) -> None:
    fields: dict[str, Any] = {second: "taehv"}
    with pytest.raises(UsageError, match=rf"--script and --{second}: expected one of them"):
        chosen(script=Path(__file__), **fields)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_runs_under_its_own_launcher_only(name: str) -> None:
    made = plan(example=name)
    assert made.launcher == EXAMPLES[name].launcher
    assert f"--example {name}" in render_table(made, 200)
    with pytest.raises(UsageError, match=f"--example {name} is made for"):
        plan(example=name, launcher="python")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("pkg.train", "pkg/train.py"),
        ("pkg.inner.deep", "pkg/inner/deep.py"),
        ("loose.below.job", "loose/below/job.py"),
    ],
)
def test_a_module_is_found_in_the_working_directory_and_nothing_is_imported(
    package: Path, name: str, file: str
) -> None:
    found = chosen("--lr", "1", module=name)
    assert found.source == package.parent / file
    assert found.python_words == ("-m", name, "--lr", "1")


def test_a_package_runs_by_its_main(package: Path) -> None:
    with pytest.raises(InputError, match=r"pkg is a package without __main__\.py"):
        chosen(module="pkg")
    (package / "__main__.py").touch()
    assert chosen(module="pkg").source == package / "__main__.py"


def test_an_installed_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = chosen(module="pytest").source
    assert found is not None
    assert found.name == "__main__.py"


def test_safe_path_leaves_the_working_directory_out_as_python_does(package: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        chosen(module="pkg.train", env={"PYTHONSAFEPATH": "1"})


@pytest.mark.parametrize("name", ["pkg.nowhere", "nowhere", "nowhere.train", "pkg.train.more"])
def test_a_module_that_is_not_there_is_refused_with_where_was_searched(package: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"--module {name} does not exist: .*{package.parent}"):
        chosen(module=name)


@pytest.mark.parametrize("name", ["", "pkg/train.py", "train.py", "a-b", ".train", "$(id)"])
def test_what_is_no_name_of_a_module_is_a_wrong_use(name: str) -> None:
    with pytest.raises(UsageError, match="expected the dotted name of a module"):
        chosen(module=name)


def test_a_module_with_a_syntax_error_is_refused(package: Path) -> None:
    (package / "train.py").write_text("x = = 1\n")
    with pytest.raises(InputError, match=r"--module pkg\.train .*line 1: Python .* cannot compile it"):
        chosen(module="pkg.train")


def test_a_module_or_a_command_given_as_a_script_is_told_its_own_form(package: Path) -> None:
    for wrong, form in (("pkg.train", "--module pkg.train"), ("env", "run -- env")):
        with pytest.raises(InputError, match="does not exist") as refused:
            chosen(script=Path(wrong))
        assert form in refused.value.hint


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("accelerate", ["--module", "pkg.train", "--lr", "$$1"]),
        ("torchrun", ["-m", "--", "pkg.train", "--lr", "$$1"]),
        ("python", ["-m", "pkg.train", "--lr", "$1"]),
        ("jax", ["-m", "pkg.train", "--lr", "$1"]),
    ],
)
@pytest.mark.usefixtures("package")
def test_every_launcher_runs_a_module(launcher: str, words: list[str]) -> None:
    made = plan("--lr", "$1", module="pkg.train", launcher=launcher)
    assert list(made.argv[-len(words) :]) == words
    assert "pkg.train" in render_table(made, 200)
    assert '"form": "module"' in render_json(made)


def test_a_command_starts_once_per_node_with_the_node_s_place() -> None:
    made = plan("env", "$HOME", "a b", nodes=2)
    assert made.argv == ("/usr/bin/env", "$HOME", "a b")
    assert made.packages == ()
    told = {variable.name: variable.value for variable in made.env}
    for prefix in ("", "PET_"):
        names = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")
        assert [told[prefix + name] for name in names] == ["2", "1", "4", "gn0", "29501"]
    assert "RANK" not in told, "the command's own processes have ranks, and it is none of them"
    assert "/usr/bin/env '$HOME' 'a b'" in render_table(made, 200)


def test_a_command_that_is_the_node_s_only_process_knows_its_rank() -> None:
    told = {variable.name: variable.value for variable in plan("env", nodes=2, gpus=1).env}
    assert [told[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["1", "2", "0"]


def test_a_command_keeps_the_platform_s_variables_that_its_script_may_read() -> None:
    platform = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "gn0", "MASTER_PORT": "29500", **PATH}
    made = build_plan(Environment(platform), machine(4), request("env"))
    assert made.removed == ()
    assert made.child_environment(platform)["RANK"] == "1"


def test_a_command_beside_the_interpreter_is_found_though_its_environment_is_not_active(
    tmp_path: Path,
) -> None:
    made = plan("pytest", "--version")
    assert made.argv[0] == str(Path(sys.executable).parent / "pytest")
    path = next(variable.value for variable in made.env if variable.name == "PATH")
    assert path == f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert "PATH" not in {variable.name for variable in plan("env").env}


def test_commands_that_cannot_start_are_refused_with_the_form_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.sh").write_text("#!/bin/bash\n")
    for word, said, hint in (
        ("no-such-command", "not found on PATH (/usr/bin:/bin)", "every node"),
        ("train.py", "not found", "--script train.py"),
        ("./train.py", "is not executable", "--script ./train.py"),
        ("./job.sh", "is not executable", "-- bash ./job.sh"),
        ("./nowhere", "does not exist", "absolute path"),
        (".", "not found", "absolute path"),
        ("", "not found", "absolute path"),
    ):
        with pytest.raises(InputError) as refused:
            chosen(word)
        assert said in refused.value.message, word
        assert hint in refused.value.hint or word in (".", ""), word
    (tmp_path / "job.sh").chmod(0o755)
    assert chosen("./job.sh") == Program(
        Form.COMMAND, f"{tmp_path}/job.sh", (), tmp_path / "job.sh", "the command after --, once per node"
    )


def test_a_command_found_through_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "python9").symlink_to(sys.executable)
    assert chosen("python9", env={"PATH": str(tmp_path)}).target == str(tmp_path / "python9")
    assert os.path.realpath(tmp_path / "python9") != str(tmp_path / "python9")


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("--launcher torchrun", {"launcher": "torchrun"}),
        ("--jax-per-gpu", {"jax_per_gpu": True}),
        ("--config", {"config": Path(__file__)}),
        ("--recipe", {"recipe": "auto"}),
    ],
)
def test_options_that_a_command_has_no_use_for_are_refused(option: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=option):
        plan("env", **fields)


@pytest.fixture
def launchers_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of launchers, which start nothing here."""
    for name in ("accelerate", "deepspeed", "mpirun", "srun", "torchrun", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setitem(PATH, "PATH", str(tmp_path))


REFUSED = [
    (["accelerate", "launch", "train.py"], "--script FILE or --module NAME"),
    (["python3", "-m", "accelerate.commands.launch", "train.py"], "--script FILE or --module NAME"),
    (["deepspeed", "train.py"], "--launcher torchrun --script FILE"),
    (["mpirun", "-np", "8", "python3", "train.py"], "starts all nodes itself"),
    (["srun", "python3", "train.py"], "starts all nodes itself"),
]


@pytest.mark.parametrize(("command", "instead"), REFUSED, ids=lambda value: str(value))
@pytest.mark.usefixtures("launchers_on_path")
def test_a_launcher_that_reads_no_place_is_refused_on_several_nodes(command: list[str], instead: str) -> None:
    with pytest.raises(UsageError, match="would start on each of 2 nodes") as refused:
        plan(*command, nodes=2)
    assert instead in refused.value.hint
    assert plan(*command, nodes=1).argv[1:] == tuple(command[1:])


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "train.py"],
        ["python3", "-m", "torch.distributed.run", "train.py"],
        ["accelerate", "launch", "--machine_rank=1", "train.py"],
        ["accelerate", "config"],
        ["deepspeed", "--no_ssh", "--node_rank", "1", "train.py"],
        ["python3", "deepspeed"],
    ],
    ids=lambda command: " ".join(command),
)
@pytest.mark.usefixtures("launchers_on_path")
def test_a_launcher_that_knows_its_place_starts_on_several_nodes(command: list[str]) -> None:
    assert plan(*command, nodes=2).argv[1:] == tuple(command[1:])
