"""Logs of real failures (torch 2.13, accelerate 1.15, DeepSpeed 0.19 over gloo), each with its true cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.why import explain_file, explain_paths

# recording, kind, signature, rank, line of the evidence, place in the user's code
RECORDINGS = [
    ("aborted_one_rank", "consequence", "abort", 1, 12, None),
    ("batch_arithmetic", "cause", "batch_arithmetic", 1, 22, "ds_batch.py:7"),
    ("bus_error_one_rank", "cause", "bus_error", 1, 12, None),
    ("caught_exception_before", "cause", "python_exception", None, 17, "caught.py:9"),
    ("chained_exceptions", "cause", "python_exception", None, 5, "chained.py:5"),
    ("checkpoint_corrupt", "cause", "checkpoint_corrupt", None, 6, "jaxless.py:2"),
    ("crashed_one_rank", "cause", "segfault", 1, 12, None),
    ("dataloader_worker_killed", "cause", "killed", None, 22, None),
    ("disk_full", "cause", "disk_full", None, 19, "diskfull.py:3"),
    ("exception_in_spawned_process", "cause", "python_exception", None, 22, "spawn.py:3"),
    ("exception_one_rank", "cause", "python_exception", 1, 8, "raise_rank1.py:6"),
    ("exception_with_torchrun_tee", "cause", "python_exception", 1, 8, "raise_rank1.py:6"),
    ("file_missing", "cause", "file_missing", None, 9, "files.py:3"),
    ("file_missing_in_dataloader", "cause", "file_missing", None, None, "loader.py:8"),
    ("gloo_timeout", "consequence", "gloo_timeout", 0, 10, "gloo_timeout.py:6"),
    ("hub_offline", "cause", "hub_offline", None, None, None),
    ("hub_without_dns", "cause", "hub_offline", None, None, None),
    ("indentation_error", "cause", "syntax_error", None, 4, "indent.py:3"),
    ("killed_one_rank", "cause", "killed", 1, 12, None),
    ("library_missing", "cause", "library_missing", None, 7, "libs.py:2"),
    ("master_name_unknown", "suspect", "name_not_resolved", None, 1, None),
    ("master_name_unknown_waiting", "suspect", "name_not_resolved", None, 1, None),
    ("master_refuses", "consequence", "master_unreachable", None, 1, None),
    ("missing_module", "cause", "missing_module", None, 4, "missing_module.py:1"),
    ("module_shadowed", "cause", "module_shadowed", None, 21, "cuda.py:2"),
    ("no_cuda_build", "cause", "nvml", None, 6, "use_cuda.py:2"),
    ("out_of_memory_in_cgroup", "cause", "killed", 1, 12, None),
    ("permission_denied", "cause", "permission_denied", None, 9, "files.py:3"),
    ("port_in_use", "cause", "port_in_use", None, 40, None),
    ("rendezvous_timeout", "consequence", "rendezvous_timeout", None, 4, "store_timeout.py:6"),
    ("rendezvous_variables", "cause", "rendezvous_variables", None, 23, "raise_rank1.py:10"),
    ("required_argument", "cause", "wrong_arguments", None, 2, None),
    ("script_missing", "cause", "script_missing", None, 1, None),
    ("shape_mismatch", "cause", "shape_mismatch", None, None, "shapes.py:4"),
    ("shared_memory_in_dataloader", "cause", "shared_memory", None, 1, None),
    ("syntax_error", "cause", "syntax_error", None, 4, "syntax.py:3"),
    ("terminated_one_rank", "consequence", "terminated", 1, 12, None),
    ("torchrun_terminated", "consequence", "terminated", None, 2, None),
    ("unrecognized_arguments", "cause", "wrong_arguments", None, 2, None),
]


@pytest.mark.parametrize(
    ("name", "kind", "cause", "rank", "line", "place"), RECORDINGS, ids=[row[0] for row in RECORDINGS]
)
def test_recording_gets_its_true_cause(
    logs: Path, name: str, kind: str, cause: str, rank: int | None, line: int | None, place: str | None
) -> None:
    verdict = explain_file(logs / f"{name}.log")
    assert (verdict.kind, verdict.cause, verdict.where.rank) == (kind, cause, rank)
    evidence = verdict.evidence[0]
    if line is not None:
        assert evidence.line == line
    recorded = (logs / f"{name}.log").read_text().splitlines()
    assert evidence.text.rstrip("…")[:60].strip() in recorded[evidence.line - 1]
    if place is not None:
        assert verdict.exception is not None
        assert f"{Path(str(verdict.exception.file)).name}:{verdict.exception.line}" == place


def test_every_recording_is_asked_for(logs: Path) -> None:
    assert {path.stem for path in logs.glob("*.log")} == {row[0] for row in RECORDINGS}


def test_recordings_name_no_machine(logs: Path) -> None:
    for path in logs.rglob("*.log"):
        text = path.read_text()
        assert "/tmp/" not in text, path
        assert "/root/" not in text, path


def test_exception_on_one_of_two_nodes_is_found_over_both_logs(logs: Path) -> None:
    verdict = explain_paths([logs / "two_nodes"])
    assert (verdict.cause, verdict.where.node, verdict.where.rank) == ("python_exception", 1, 1)
    assert verdict.title == "RuntimeError: corrupt clip in batch 1"
    assert [consequence.text for consequence in verdict.consequences] == [
        "1 other rank then lost their connection"
    ]


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
    assert "outside" in undecided.meaning


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
