"""The corpus, each log with its true cause: recordings of real failures (torch 2.13, accelerate 1.15,
DeepSpeed 0.19 over gloo), and logs in the form that schedulers, launchers and libraries print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from platform_launch.events import as_json, beside, event, in_text
from platform_launch.why.explaining import explain_file, explain_paths
from tests.why.corpus import Case, cases

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_log_gets_its_true_cause_at_its_true_place(case: Case) -> None:
    verdict = case.answer()
    assert (verdict.kind, verdict.cause or "", str(verdict.where)) == (case.kind, case.cause, case.place)
    lines = case.log.read_text().splitlines()
    for evidence in verdict.evidence:
        assert evidence.text.strip("…")[:60].strip() in re.sub(
            r"\x1b\[[\d;]*m", "", lines[evidence.line - 1]
        ).expandtabs(4)
    if case.line:
        assert verdict.evidence[0].line == int(case.line)
    if case.code:
        assert verdict.exception is not None
        assert f"{Path(str(verdict.exception.file)).name}:{verdict.exception.line}" == case.code


def test_every_log_has_its_line_of_truth(logs: Path) -> None:
    assert sorted(path.stem for path in logs.glob("*.log")) == sorted(case.name for case in CASES)


def test_recordings_name_no_machine(logs: Path) -> None:
    for path in logs.rglob("*.log"):
        text = path.read_text()
        assert "/tmp/" not in text, path
        assert "/root/" not in text, path


def test_exception_on_one_of_two_nodes_is_found_over_both_logs(logs: Path) -> None:
    verdict = explain_paths([logs / "two_nodes"])
    assert (verdict.cause, verdict.where.node, verdict.where.rank) == ("python_exception", 1, 1)
    assert verdict.title == "RuntimeError: corrupt clip in batch 1"
    assert [(one.id, one.count, one.of) for one in verdict.consequences] == [("connection_lost", 1, "ranks")]


def test_node_that_only_lost_its_connection_claims_no_cause(logs: Path) -> None:
    verdict = explain_file(logs / "two_nodes" / "train_demo_node0_20261121-041500.log")
    assert (verdict.kind, verdict.cause) == ("consequence", "connection_lost")
    assert verdict.lines()[0].startswith("first sign:")


def test_kernels_count_tells_lack_of_memory_from_a_kill_from_outside(logs: Path) -> None:
    log = logs / "out_of_memory_in_cgroup.log"
    assert explain_file(log, oom_kills=1).cause == "out_of_memory_kill"
    assert explain_file(log, oom_kills=0).cause == "killed_from_outside"
    undecided = explain_file(log)
    assert undecided.cause == "killed"
    assert "memory ran out" in undecided.meaning
    assert "sent SIGKILL" in undecided.meaning


@pytest.mark.parametrize("cause", ["killed_from_outside", "out_of_memory_kill", "killed"])
def test_what_the_launcher_found_with_the_kernels_count_holds_when_its_log_is_read_again(
    logs: Path, tmp_path: Path, cause: str
) -> None:
    log = tmp_path / "train_job_node0_20261122-101500.log"
    said = in_text(event("verdict", text="cause:", cause=cause))
    log.write_text((logs / "out_of_memory_in_cgroup.log").read_text() + f"{said}\n")
    beside(log).write_bytes(as_json(event("verdict", text="cause:", cause=cause), 0))
    assert explain_file(log).cause == cause


def test_chain_of_exceptions_says_how_it_ended(logs: Path) -> None:
    verdict = explain_file(logs / "chained_exceptions.log")
    assert verdict.title == "KeyError: 'learning_rate'"
    assert "it ended as RuntimeError: could not build the optimizer" in verdict.notes


def test_evidence_is_the_same_through_the_supervisors_prefix(logs: Path, tmp_path: Path) -> None:
    lines = (logs / "exception_one_rank.log").read_text().splitlines(keepends=True)
    prefixed = tmp_path / "train_demo_node3_20261121-041500.log"
    prefixed.write_text("".join(f"[node 3] {line}" for line in lines))
    verdict = explain_file(prefixed)
    assert (verdict.cause, verdict.where.node, verdict.where.rank) == ("python_exception", 3, 1)
    assert verdict.exception is not None
    assert verdict.exception.line == 6
