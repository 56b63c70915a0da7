from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError, TopologyError
from platform_launch.hardware import Hardware
from platform_launch.plan.launch_plan import LaunchPlan, build_plan
from platform_launch.plan.render import command_text, render_json, render_shell, render_table
from platform_launch.plan.request import Request
from platform_launch.project import project_root
from platform_launch.topology import Overrides
from tests.plan.machines import machine

TWO_NODES = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
HOSTILE = ["a b", "$(touch /tmp/x)", "quo'te\"s", "new\nline", "--flag", "", "ünïcode", "`id`", "*"]


def request(**changes: Any) -> Request:
    values: dict[str, Any] = {
        "root": project_root(),
        "python": "/env/bin/python3",
        "temporary": "/local",
        "started": "20260102-030405",
        "default_log_dir": Path("/logs"),
        **changes,
    }
    return Request(**values)


def plan(env: dict[str, str] | None = None, hardware: Hardware | None = None, **changes: Any) -> LaunchPlan:
    """Plan a launch; of the example training if the test names nothing else to run."""
    if not changes.keys() & {"script", "module", "example", "arguments"}:
        changes["example"] = "taehv"
    return build_plan(
        Environment(TWO_NODES if env is None else env, hostname="host"),
        hardware or machine(8),
        request(**changes),
    )


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_sixteen_gpus_on_two_nodes_become_accelerate_launch_of_this_node() -> None:
    made = plan()
    assert made.argv[:3] == ("/env/bin/python3", "-m", "accelerate.commands.launch")
    assert option(made.argv, "--config_file").endswith("deepspeed/deepspeed_16gpu.yaml")
    assert option(made.argv, "--num_machines") == "2"
    assert option(made.argv, "--num_processes") == "16"
    assert option(made.argv, "--machine_rank") == "1"
    assert option(made.argv, "--main_process_ip") == "10.0.0.1"
    assert option(made.argv, "--main_process_port") == "29500"
    assert option(made.argv, "--config").endswith("configs/taehv_config_16gpu_h100.py")
    told = {variable.name: variable.value for variable in made.env}
    assert (told["NNODES"], told["NODE_RANK"]) == ("2", "1")
    assert made.training.global_batch == 192
    assert made.topology.sources["nproc_per_node"] == "GPUs counted (NVML)"


def test_one_machine_with_eight_gpus_takes_the_recipe_for_eight() -> None:
    made = plan({})
    assert made.topology.nnodes == 1
    assert option(made.argv, "--config_file").endswith("deepspeed/deepspeed_8gpu.yaml")
    assert option(made.argv, "--gradient_accumulation_steps") == "2"


def test_on_one_node_a_port_that_nobody_chose_is_a_free_one() -> None:
    hardware = dataclasses.replace(machine(8), free_port=43210)
    assert option(plan({}, hardware).argv, "--main_process_port") == "43210"
    assert option(plan(hardware=hardware).argv, "--main_process_port") == "29500"
    for env, overrides in (({"MASTER_PORT": "29500"}, Overrides()), ({}, Overrides(master_port=29500))):
        made = plan(env, hardware, overrides=overrides)
        assert option(made.argv, "--main_process_port") == "29500"


def test_a_cpu_machine_takes_the_small_default() -> None:
    made = plan({}, machine(0))
    assert option(made.argv, "--config").endswith("configs/taehv_config_small.py")
    assert option(made.argv, "--num_processes") == "1"


def test_an_unlisted_number_of_gpus_scales_the_nearest_recipe_and_says_so() -> None:
    made = plan({}, machine(4))
    assert option(made.argv, "--gradient_accumulation_steps") == "4"
    assert option(made.argv, "--gradient-accumulation-steps") == "4"
    assert option(made.argv, "--learning-rate") == "0.0001"
    assert any("no recipe for 4 GPUs" in warning.text for warning in made.warnings)


def test_strict_refuses_to_scale_unless_all_is_named() -> None:
    with pytest.raises(InputError, match="--strict"):
        plan({}, machine(4), strict=True)
    root = project_root()
    made = plan(
        {},
        machine(4),
        strict=True,
        config=root / "configs/taehv_config_h100.py",
        deepspeed_config=root / "deepspeed/deepspeed_8gpu.yaml",
    )
    assert "--learning-rate" not in made.argv


def test_a_script_of_ones_own_gets_its_arguments_and_no_config(tmp_path: Path) -> None:
    script = tmp_path / "train me.py"
    script.touch()
    made = plan(script=script, arguments=tuple(HOSTILE))
    # torchrun, behind accelerate too, makes $ of $$: tests/end_to_end/test_arguments.py shows what arrives.
    given = tuple(word.replace("$", "$$") for word in HOSTILE)
    assert made.argv[made.argv.index(str(script)) + 1 :] == given
    assert made.training.config is None
    assert made.training.global_batch is None


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun", "python"])
def test_a_script_that_python_cannot_read_is_refused_before_any_node_waits(
    tmp_path: Path, launcher: str
) -> None:
    script = tmp_path / "train.sh"
    for source, said in ((b"#!/bin/bash\nset -e\npython x.py\n", "line 3"), (b"# coding: foo\n", "foo")):
        script.write_bytes(source)
        with pytest.raises(InputError, match=f"--script .*{said}"):
            plan(script=script, launcher=launcher)
        assert plan({**TWO_NODES, "PYTHON_EXEC": "/bin/bash"}, script=script, launcher=launcher)
    for source in (
        b"PK\3\4\0\0",
        b"(" * 2**22 + b"(",
        "# coding: latin-1\nx = '\xe9' is 'y'\n".encode("latin-1"),
        b"",
    ):
        script.write_bytes(source)
        assert plan(script=script, launcher=launcher).training.program.source == script


@pytest.mark.parametrize("gpus", [0, 1, 8, 16])
def test_a_script_of_ones_own_starts_as_plain_accelerate_launch_whatever_the_machine(
    tmp_path: Path, gpus: int
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    made = plan(hardware=machine(gpus), script=script)
    assert option(made.argv, "--config_file").endswith("configs/accelerate_multi_gpu.yaml")
    assert made.packages == ("torch", "accelerate")
    assert "--gradient_accumulation_steps" not in made.argv
    assert "without DeepSpeed" in made.training.rule
    assert made.warnings == plan(hardware=machine(gpus), script=script, launcher="torchrun").warnings


def test_a_script_of_ones_own_gets_a_recipe_when_it_asks_for_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    fitting = plan(script=script, recipe="auto")
    assert option(fitting.argv, "--config_file").endswith("deepspeed/deepspeed_16gpu.yaml")
    named = plan(script=script, recipe="8gpu")
    assert option(named.argv, "--config_file").endswith("deepspeed/deepspeed_8gpu.yaml")
    assert "deepspeed" in named.packages
    assert any("gradient_accumulation_steps=2" in warning.text for warning in named.warnings)
    with pytest.raises(InputError, match=r"--recipe 'h100' is not a recipe: expected auto, cpu, 8gpu, 16gpu"):
        plan(script=script, recipe="h100")


def test_a_recipe_by_name_is_scaled_to_the_machine() -> None:
    made = plan({}, machine(4), recipe="16gpu")
    assert option(made.argv, "--config_file").endswith("deepspeed/deepspeed_16gpu.yaml")
    assert option(made.argv, "--gradient_accumulation_steps") == "4"
    assert option(plan({}, machine(8), recipe="cpu").argv, "--config").endswith("taehv_config_small.py")


def test_what_the_user_writes_for_the_script_comes_last_so_that_it_wins() -> None:
    made = plan({}, machine(4), example="taehv", arguments=("--learning-rate", "0.5"))
    assert made.argv[-2:] == ("--learning-rate", "0.5")


@pytest.mark.parametrize("flag", ["script", "config", "deepspeed_config"])
def test_a_file_that_is_not_there_is_refused_by_name_and_flag(tmp_path: Path, flag: str) -> None:
    named: dict[str, Any] = {} if flag == "script" else {"example": "taehv"}
    with pytest.raises(InputError, match=rf"nowhere does not exist.*--{flag.replace('_', '-')}"):
        plan(**{**named, flag: tmp_path / "nowhere"})
    with pytest.raises(InputError, match="is a folder") as refused:
        plan(**{**named, flag: tmp_path})
    assert f"--{flag.replace('_', '-')} {tmp_path}" in refused.value.hint


def test_a_relative_path_that_is_not_there_is_shown_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=rf"\(--script, relative to the working directory {tmp_path}\)$"
    ) as caught:
        plan(script=Path("train.py"))
    assert "absolute path" in caught.value.hint


def test_a_script_whose_variable_was_empty_is_told_as_that() -> None:
    with pytest.raises(InputError, match=r"--script names no file.*found nothing"):
        plan(script=Path())


@pytest.mark.parametrize(("name", "problem"), [("gone.py", "does not exist"), ('"a\\0b"', "cannot be used")])
def test_a_file_that_a_recipe_names_and_is_not_there_is_the_recipes_fault(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "configs" / "recipes.yaml").write_text(
        f"script: train.py\nrecipes: [{{name: a, gpus: 8, config: {name}, deepspeed: gone.yaml}}]"
    )
    with pytest.raises(InputError, match=rf"{problem}.*: expected a file \(configs/recipes\.yaml\)$"):
        build_plan(Environment(TWO_NODES), machine(4), request(root=tmp_path, script=tmp_path / "train.py"))


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"8 processes per node .* but 4 GPU"):
        plan(hardware=machine(4), overrides=Overrides(nproc_per_node=8))


def test_an_ipv6_master_is_bracketed_for_accelerate() -> None:
    made = plan({**TWO_NODES, "MASTER_ADDR": "fd00::1"})
    assert option(made.argv, "--main_process_ip") == "[fd00::1]"


def test_the_child_inherits_everything_but_what_was_removed() -> None:
    made = plan({**TWO_NODES, "PET_JUNK": "1", "MINE": "kept"})
    child = made.child_environment({**TWO_NODES, "PET_JUNK": "1", "MINE": "kept", "EMPTY": ""})
    assert not {"WORLD_SIZE", "RANK", "PET_JUNK"} & set(child)
    assert child["MINE"] == "kept"
    assert child["EMPTY"] == ""
    assert child["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_what_the_user_meant_wins_over_our_default_for_the_same_name() -> None:
    made = plan({**TWO_NODES, "NCCL_ASYNC_ERROR_HANDLING": "2"})
    chosen = {variable.name: variable for variable in made.env}
    assert chosen["TORCH_NCCL_ASYNC_ERROR_HANDLING"].value == "2"
    assert len(chosen) == len(made.env)


def test_a_job_name_cannot_leave_the_log_folder() -> None:
    made = plan(job_name="../../etc/$(x) y", log_dir=Path("/logs"))
    assert made.log_path == Path("/logs/train_etc-x-y_node1_20260102-030405.log")


def test_a_plan_cannot_be_changed() -> None:
    made = plan()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.argv = ()  # type: ignore[misc]


def test_json_holds_the_whole_plan() -> None:
    document = json.loads(render_json(plan()))
    assert document["topology"]["world_size"] == 16
    assert document["argv"][1:3] == ["-m", "accelerate.commands.launch"]
    assert all({"name", "value", "source", "reason"} == set(variable) for variable in document["env"])
    assert document["training"]["rule"] == "recipe for 16 GPUs"


def test_shell_output_is_safe_to_eval(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    env = {**TWO_NODES, "NCCL_BLOCKING_WAIT": "1'; touch pwned; '$(touch pwned)\n`touch pwned`"}
    text = render_shell(plan(env, script=script, arguments=tuple(HOSTILE)))
    shown = subprocess.run(
        [
            "bash",
            "-c",
            'eval "$1"; printf %s "$TORCH_NCCL_BLOCKING_WAIT"; echo "/${WORLD_SIZE-unset}"',
            "-",
            text,
        ],
        env={"WORLD_SIZE": "2", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert shown.stderr == ""
    assert shown.stdout == env["NCCL_BLOCKING_WAIT"] + "/unset\n"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("launcher", ["torchrun", "python", "jax"])
def test_something_else_can_be_started_with_the_shell_output(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "train.py"
    script.touch()
    env = {**TWO_NODES, "NCCL_IB_TC": "106", "PET_X;touch pwned": "1", "NCCL_Y;touch pwned": "2"}
    made = plan(env, script=script, launcher=launcher)
    names = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "NCCL_IB_TC")
    shown = subprocess.run(
        ["bash", "-c", f'eval "$1"; echo {" ".join(f"${name}" for name in names)}', "-", render_shell(made)],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    topology = made.topology
    place = (topology.master_addr, topology.master_port, 2, topology.node_rank, topology.nproc_per_node)
    assert shown.stdout.split() == [*map(str, place), "106"]
    assert (shown.stderr, (tmp_path / "pwned").exists()) == ("", False)


def test_what_was_set_outside_is_shown_as_such() -> None:
    made = plan({**TWO_NODES, "NCCL_IB_TC": "106", "GLOO_DEBUG": "1", "HF_TOKEN": "secret"})
    kept = {variable.name: variable for variable in made.kept}
    assert set(kept) >= {"NCCL_IB_TC", "GLOO_DEBUG"}
    assert "HF_TOKEN" not in kept
    assert not set(kept) & {variable.name for variable in made.env}
    table = render_table(made, 120)
    assert "Set outside" in table
    assert [v["name"] for v in json.loads(render_json(made))["kept"]] == sorted(kept)


def test_names_of_platform_env_are_exported_and_shown_without_secrets() -> None:
    own = {"DATA": "/d", "HF_TOKEN": "hf_secret", "PLATFORM_LAUNCH_VENV": "/v"}
    made = plan({**TWO_NODES, **own, "PLATFORM_LAUNCH_FROM_FILE": f" {' '.join(own)}"})
    text = render_shell(made)
    assert "export DATA=/d" in text
    assert "export HF_TOKEN=hf_secret" in text
    assert "PLATFORM_LAUNCH_VENV" not in text
    assert "hf_secret" not in render_table(made, 120)


def test_the_value_that_begins_with_an_equals_sign_says_whose_it_is() -> None:
    kept = {one.name: one.reason for one in plan({**TWO_NODES, "NCCL_SOCKET_IFNAME": "=lo"}).kept}
    assert "NCCL's" in kept["NCCL_SOCKET_IFNAME"]


def test_the_printed_command_can_be_pasted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    made = plan(script=script, arguments=tuple(HOSTILE))
    words = subprocess.run(
        ["bash", "-c", f'show() {{ printf "%s\\0" "$@"; }}\nshow {command_text(made.argv)}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[:-1]
    assert tuple(words) == made.argv


def test_the_table_says_every_reason_and_shows_control_characters() -> None:
    made = plan({**TWO_NODES, "NCCL_BLOCKING_WAIT": "\x1b[31mred"})
    text = click.unstyle(render_table(made, 100))
    in_one_line = " ".join(text.split())  # a long reason takes several
    for variable in made.env:
        assert variable.name in text
        assert variable.reason in in_one_line
    assert "\\x1b[31mred" in text


@pytest.mark.parametrize("width", [80, 100])
def test_lines_of_the_table_fit_where_values_allow(width: int) -> None:
    made = plan({**TWO_NODES, "NCCL_SOCKET_IFNAME": "=lo"})
    table, _, _command = click.unstyle(render_table(made, width)).partition("\nCommand\n")
    lines = table.splitlines()
    too_long = [line for line in lines if len(line) > width]
    assert [line for line in too_long if len(line.split()) > 2] == []  # a name and a value at most
    assert not any(line.endswith(" ") for line in lines)
