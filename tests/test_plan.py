from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError, TopologyError
from platform_launch.hardware import Hardware
from platform_launch.plan import LaunchPlan, build_plan
from platform_launch.project import project_root
from platform_launch.render import command_text, render_json, render_shell, render_table
from platform_launch.settings.request import Request
from platform_launch.topology import Overrides
from tests.settings.machines import machine

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


def plan(
    env: dict[str, str] | None = None, hardware: Hardware | None = None, **changes: object
) -> LaunchPlan:
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
    assert made.training.global_batch == 128
    assert made.topology.sources["nproc_per_node"] == "GPUs counted (NVML)"


def test_one_machine_with_eight_gpus_takes_the_recipe_for_eight() -> None:
    made = plan({})
    assert made.topology.nnodes == 1
    assert option(made.argv, "--config_file").endswith("deepspeed/deepspeed_8gpu.yaml")
    assert option(made.argv, "--gradient_accumulation_steps") == "2"


def test_a_cpu_machine_takes_the_small_default() -> None:
    made = plan({}, machine(0))
    assert option(made.argv, "--config").endswith("configs/taehv_config_small.py")
    assert option(made.argv, "--num_processes") == "1"


def test_an_unlisted_number_of_gpus_scales_the_nearest_recipe_and_says_so() -> None:
    made = plan({}, machine(4))
    assert option(made.argv, "--gradient_accumulation_steps") == "4"
    assert option(made.argv, "--gradient-accumulation-steps") == "4"
    assert option(made.argv, "--learning-rate") == "0.0001"
    assert any("no recipe for 4 GPU(s)" in warning for warning in made.warnings)


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
    made = plan(script=script, script_args=tuple(HOSTILE))
    assert made.argv[made.argv.index(str(script)) + 1 :] == tuple(HOSTILE)
    assert made.training.config is None
    assert made.training.global_batch is None


def test_what_the_user_writes_for_the_script_comes_last_so_that_it_wins() -> None:
    made = plan({}, machine(4), script_args=("--learning-rate", "0.5"))
    assert made.argv[-2:] == ("--learning-rate", "0.5")


@pytest.mark.parametrize("flag", ["script", "config", "deepspeed_config"])
def test_a_file_that_is_not_there_is_refused_by_name_and_flag(tmp_path: Path, flag: str) -> None:
    with pytest.raises(InputError, match=rf"nowhere does not exist.*--{flag.replace('_', '-')}"):
        build_plan(Environment(TWO_NODES), machine(8), request(**{flag: tmp_path / "nowhere"}))
    with pytest.raises(InputError, match="is a folder"):
        build_plan(Environment(TWO_NODES), machine(8), request(**{flag: tmp_path}))


def test_a_relative_path_that_is_not_there_is_shown_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=rf"\(--script, seen from the working directory {tmp_path}\)$"
    ) as caught:
        plan(script=Path("train.py"))
    assert "absolute path" in caught.value.hint


def test_a_file_that_a_recipe_names_and_is_not_there_is_the_recipes_fault(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "configs" / "recipes.yaml").write_text(
        "script: train.py\nrecipes: [{gpus: 8, config: gone.py, deepspeed: gone.yaml}]"
    )
    expected = rf"{tmp_path}/gone\.py does not exist: expected a file \(configs/recipes\.yaml\)$"
    with pytest.raises(InputError, match=expected):
        build_plan(Environment(TWO_NODES), machine(4), request(root=tmp_path))


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
    text = render_shell(plan(env, script=script, script_args=tuple(HOSTILE)))
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


def test_the_printed_command_can_be_pasted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    made = plan(script=script, script_args=tuple(HOSTILE))
    words = subprocess.run(
        ["bash", "-c", f'show() {{ printf "%s\\0" "$@"; }}\nshow {command_text(made.argv)}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[:-1]
    assert tuple(words) == made.argv


def test_the_table_says_every_reason_and_shows_control_characters() -> None:
    made = plan({**TWO_NODES, "NCCL_BLOCKING_WAIT": "\x1b[31mred"})
    text = render_table(made, 100)
    for variable in made.env:
        assert variable.name in text
        assert variable.reason in text
    assert "\\x1b[31mred" in text


def test_lines_of_the_table_fit_where_values_allow() -> None:
    import click

    made = plan()
    longest = max(len(variable.name) + len(variable.value) for variable in made.env)
    lines = click.unstyle(render_table(made, 100)).splitlines()
    reasons = [line for line in lines if line.strip().startswith("(")]
    assert max(len(line) for line in lines if line not in reasons) <= max(100, longest + 50)
    assert not any(line.endswith(" ") for line in lines)
