"""What nodes say of their DeepSpeed, judged and compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.wheels.report import NodeReport, differences, judge, read, warnings

FACTS = {
    "backend": "cuda",
    "built_for_backend": "cuda",
    "built_for_torch": "2.13",
    "compiler": "/usr/bin/c++",
    "ninja": "/usr/bin/ninja",
}
REPORT = NodeReport(
    hostname="node-a",
    python="3.11.7",
    torch="2.13.0+cu130",
    cuda="13.0",
    deepspeed="0.19.8",
    backend="cuda",
    ops={"cpu_adam": "compiled", "utils": "at run time", "gds": "unavailable"},
    problems={"gds": "gds requires libcufile"},
    missing_requirements=[],
    gpus=["NVIDIA H100 80GB HBM3 (9.0)"] * 8,
)


@pytest.mark.parametrize(
    ("compiled", "problem", "changes", "state", "reason"),
    [
        (True, "", {}, "compiled", ""),
        (True, "ImportError: undefined symbol", {}, "broken", "undefined symbol"),
        (
            True,
            "",
            {"built_for_backend": "cpu"},
            "broken",
            "compiled for the backend cpu, ignored under cuda",
        ),
        (True, "", {"built_for_torch": "2.12"}, "broken", "compiled for torch 2.12, refused under 2.13"),
        (False, "", {"built_for_torch": "0.0"}, "at run time", ""),
        (False, "requires libaio", {}, "unavailable", "requires libaio"),
        (False, "", {"ninja": None}, "unavailable", "no ninja"),
        (False, "", {"compiler": None}, "unavailable", "no C++ compiler"),
    ],
)
def test_an_op_is_judged_as_deepspeed_will(
    compiled: bool, problem: str, changes: dict[str, object], state: str, reason: str
) -> None:
    found, why = judge({"compiled": compiled, "problem": problem}, {**FACTS, **changes}, torch=(2, 13))
    assert found == state
    assert reason in why
    assert bool(why) is bool(reason)


def test_ops_that_would_compile_at_run_time_are_one_warning() -> None:
    assert [text for text in warnings(REPORT) if "not compiled" in text and "utils" in text]
    assert len(warnings(REPORT)) == 1


def test_a_compiled_op_that_cannot_be_used_and_missing_packages_are_warnings() -> None:
    report = dataclasses.replace(
        REPORT, ops={"cpu_adam": "broken"}, problems={"cpu_adam": "no"}, missing_requirements=["hjson"]
    )
    first, second = warnings(report)
    assert "cpu_adam is in the wheel, but cannot be used: no" in first
    assert second.endswith("hjson")


def test_nodes_that_are_alike_have_no_differences() -> None:
    assert differences(REPORT, dataclasses.replace(REPORT, hostname="node-b")) == []


def test_each_difference_between_two_nodes_names_both() -> None:
    other = dataclasses.replace(
        REPORT,
        hostname="node-b",
        torch="2.12.0",
        cuda=None,
        gpus=[],
        ops={"cpu_adam": "at run time", "utils": "at run time"},
    )
    assert differences(REPORT, other) == [
        "torch: node-a has 2.13.0+cu130, node-b has 2.12.0",
        "CUDA of torch: node-a has 13.0, node-b has none",
        "GPUs: node-a has NVIDIA H100 80GB HBM3 (9.0), node-b has none",
        "op cpu_adam: compiled on node-a, at run time on node-b",
        "op gds: unavailable on node-a, unknown on node-b",
    ]


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "node a.json"
    path.write_text(REPORT.as_json())
    assert read(path) == REPORT


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"ops": 1}', '{"ops": {}}', "not json"])
def test_a_file_that_is_no_report_is_refused_with_the_command_that_writes_one(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is not the output of wheel check") as raised:
        read(path)
    assert "--format json" in raised.value.hint


def test_a_report_that_is_not_there_is_no_wrong_answer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.json cannot be read: No such file") as raised:
        read(tmp_path / "x.json")
    assert "--format json" in raised.value.hint
