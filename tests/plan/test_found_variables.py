from __future__ import annotations

import pytest

from platform_launch.environment import Environment
from platform_launch.plan import known_variables
from platform_launch.plan.found_variables import set_outside, translate, warn
from tests.plan.machines import job, machine


def test_a_timeout_that_nothing_reads_becomes_the_ones_that_are_read() -> None:
    chosen, warnings = translate(Environment({"NCCL_TIMEOUT": "10800", "TORCH_DISTRIBUTED_TIMEOUT": "600"}))
    assert {v.name: v.value for v in chosen} == {
        "DEEPSPEED_TIMEOUT": "180",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "10800",
    }
    assert len(warnings) == 1
    assert "NCCL_TIMEOUT=10800" in warnings[0].text
    assert "TORCH_DISTRIBUTED_TIMEOUT=600" in warnings[0].text


def test_a_translated_timeout_does_not_overwrite_the_real_one() -> None:
    chosen, _ = translate(Environment({"NCCL_TIMEOUT": "10800", "DEEPSPEED_TIMEOUT": "5"}))
    assert [v.name for v in chosen] == ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]


@pytest.mark.parametrize("value", ["3h", "-1", "0", "1e4"])
def test_a_timeout_that_is_no_number_is_named_and_not_translated(value: str) -> None:
    chosen, warnings = translate(Environment({"NCCL_TIMEOUT": value}))
    assert chosen == []
    assert f"NCCL_TIMEOUT={value}" in warnings[0].text


def test_names_that_torch_moved_are_carried_over() -> None:
    chosen, warnings = translate(Environment({"NCCL_BLOCKING_WAIT": "1"}))
    assert [(v.name, v.value) for v in chosen] == [("TORCH_NCCL_BLOCKING_WAIT", "1")]
    assert "TORCH_NCCL_BLOCKING_WAIT" in warnings[0].text


def test_a_moved_name_does_not_overwrite_the_new_one() -> None:
    env = Environment({"NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_BLOCKING_WAIT": "0"})
    assert translate(env)[0] == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCL_ALGO", "Ring", "meant for debugging"),
        ("NCCL_P2P_LEVEL", "SYS", "meant for debugging"),
        ("NCCL_IB_CUDA_SUPPORT", "1", "not read any more"),
        ("NCCL_LAUNCH_MODE", "GROUP", "not read any more"),
        ("NCCL_MAX_NCHANNELS", "8", "NCCL_MAX_CTAS"),
        ("NCCL_SOCKET_IFNAM", "eth0", "did you mean NCCL_SOCKET_IFNAME?"),
        ("NCCL_MADE_UP_BY_A_GUIDE", "1", "NCCL's documentation has no variable"),
        ("NCCL_SOCKET_IFNAME", "bond0", "selects no interface of this node (it has eth0)"),
    ],
)
def test_a_misleading_variable_is_named(name: str, value: str, said: str) -> None:
    warnings = warn(Environment({name: value}), job(), machine(8))
    assert len(warnings) == 1
    assert name in warnings[0].text
    assert said in warnings[0].text


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_DEBUG", "INFO"), ("NCCL_IB_TC", "160"), ("NCCL_LAUNCH_MODE", "PARALLEL")]
)
def test_variables_fit_for_production_are_passed_over_in_silence(name: str, value: str) -> None:
    assert warn(Environment({name: value}), job(), machine(8)) == []


def test_gb200_without_an_imex_channel_is_told_what_it_loses() -> None:
    gb200 = machine(4, name="NVIDIA GB200")
    assert "IMEX" in warn(Environment({}), job(), gb200)[0].text
    assert warn(Environment({}), job(), machine(4, name="NVIDIA GB200", imex=True)) == []
    given_up = warn(Environment({"NCCL_MNNVL_ENABLE": "0"}), job(), gb200)
    assert any("disables NVLink between the nodes" in warning.text for warning in given_up)


def test_no_variable_is_in_two_tables() -> None:
    tables: list[set[str]] = [
        set(known_variables.PRODUCTION),
        set(known_variables.DEBUG_ONLY),
        set(known_variables.DEAD),
        set(known_variables.DEPRECATED),
        set(known_variables.RENAMED),
        set(known_variables.FAKE_TIMEOUTS),
    ]
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_infiniband_off_is_this_projects_own_choice_on_gb200() -> None:
    off = Environment({"NCCL_IB_DISABLE": "1"})
    assert warn(off, job(), machine(4, name="NVIDIA GB200", imex=True)) == []
    assert len(warn(off, job(), machine(8))) == 1


@pytest.mark.parametrize("name", ["NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"])
def test_what_is_not_disabled_is_no_reason_to_warn(name: str) -> None:
    assert warn(Environment({name: "0"}), job(), machine(8)) == []
    assert len(warn(Environment({name: "1"}), job(), machine(8))) == 1


def test_what_simulate_chose_is_not_called_the_users() -> None:
    env = {"PLATFORM_LAUNCH_FROM_SIMULATE": "GLOO_SOCKET_IFNAME OMP_NUM_THREADS", "OMP_NUM_THREADS": "1"}
    reasons = {one.name: one.reason for one in set_outside(Environment(env | {"GLOO_SOCKET_IFNAME": "lo"}))}
    assert reasons == dict.fromkeys(("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"), "set by simulate; not changed")
