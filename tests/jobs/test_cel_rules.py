"""The rules in CEL that operators' definitions hold, evaluated as the API server does.

``kubectl explain`` does not show them, schemas do not express them, and a field that breaks one is refused.
PyTorchJob (training-operator 2f18ab7af095), LeaderWorkerSet (024af0845195) and Volcano's Job (032c8b66ae90)
have none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from platform_launch import jobs
from platform_launch.jobs import render
from platform_launch.jobs.job import Job
from platform_launch.jobs.names import LONGEST_NAME
from tests.jobs.manifests import a_job, documents
from tests.jobs.test_schemas import EVERYTHING, ON_CPU, RESTRICTED

celpy = pytest.importorskip("celpy", reason="needs cel-python, of the dev extra")


@dataclass(frozen=True)
class Rule:
    """What must hold of the part at ``path``. One that names ``oldSelf`` is about a change of that part."""

    path: str
    must_hold: str

    @property
    def is_about_changes(self) -> bool:
        return "oldSelf" in self.must_hold


_UNCHANGED = "self == oldSelf"


def _jobset(path: str) -> tuple[Rule, ...]:
    """Of kubernetes-sigs/jobset api/jobset/v1alpha2 at 0336a8fd9fd3; a TrainingRuntime contains them too."""
    in_order = "has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder'"
    return (
        Rule(path, f"!({in_order}) || self.replicatedJobs.all(job, !has(job.dependsOn))"),
        *(Rule(f"{path}.{part}", _UNCHANGED) for part in ("network", "successPolicy", "failurePolicy")),
    )


RULES: dict[str, tuple[Rule, ...]] = {
    "JobSet": _jobset("spec"),
    # kubeflow/trainer pkg/apis/trainer/v1alpha1 at 022656ac197e; numProcPerNode: releases 2.0 and 2.1.
    "TrainingRuntime": (
        Rule("spec.mlPolicy", "!has(self.numNodes) || !has(self.torch) || !has(self.torch.elasticPolicy)"),
        Rule("spec.mlPolicy", "!has(self.torch) || !has(self.mpi)"),
        Rule("spec.mlPolicy.torch.numProcPerNode", "self in ['auto', 'cpu', 'gpu'] || self > 0"),
        *_jobset("spec.template.spec"),
    ),
    # The same at 0015772c282d.
    "TrainJob": (
        Rule("", "self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')"),
        Rule("", "size(self.metadata.name) < 64"),
        Rule("spec.runtimeRef", _UNCHANGED),
        Rule("spec.trainer", _UNCHANGED),
    ),
}


def part_of(document: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def holds(rule: Rule, **values: Any) -> bool:
    """Evaluate a rule; the server takes an error as a broken rule."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule.must_hold))
    try:
        return bool(program.evaluate({name: celpy.json_to_cel(value) for name, value in values.items()}))
    except celpy.CELEvalError:
        return False


def broken(document: dict[str, Any], before: dict[str, Any] | None = None) -> list[Rule]:
    """The rules that a new document breaks, or a change of one that exists."""

    def judged() -> Iterator[tuple[Rule, bool]]:
        for rule in RULES.get(document["kind"], ()):
            part, old = part_of(document, rule.path), part_of(before, rule.path)
            if part is not None and not rule.is_about_changes:
                yield rule, holds(rule, self=part)
            elif part is not None and old is not None:
                yield rule, holds(rule, self=part, oldSelf=old)

    return [rule for rule, is_met in judged() if not is_met]


def custom(job: Job, target: str) -> list[dict[str, Any]]:
    return [document for document in documents(render(job, target)) if document["kind"] in RULES]


VARIANTS: dict[str, dict[str, Any]] = {
    "least": {},
    "everything": EVERYTHING,
    "on CPUs": ON_CPU,
    "restricted": RESTRICTED,
    "longest name": {"name": "a" * LONGEST_NAME},
}


@pytest.mark.parametrize(
    ("target", "values"),
    [
        *((target, values) for target in ("jobset", "trainjob") for values in VARIANTS.values()),
        ("jobset", {"spares": 1}),
    ],
)
def test_a_new_object_breaks_no_rule(target: str, values: dict[str, Any]) -> None:
    written = custom(a_job(**values), target)
    assert written
    for document in written:
        assert broken(document) == []


@pytest.mark.parametrize(
    ("target", "kind", "path", "value"),
    [
        ("trainjob", "TrainJob", "metadata.name", "Demo"),
        ("trainjob", "TrainJob", "metadata.name", "1-demo"),
        ("trainjob", "TrainJob", "metadata.name", "a" * 64),
        ("trainjob", "TrainingRuntime", "spec.mlPolicy.torch", {"elasticPolicy": {"maxNodes": 2}}),
        ("trainjob", "TrainingRuntime", "spec.mlPolicy.mpi", {}),
        ("trainjob", "TrainingRuntime", "spec.mlPolicy.torch", {"numProcPerNode": "all"}),
        ("trainjob", "TrainingRuntime", "spec.mlPolicy.torch", {"numProcPerNode": 0}),
        (
            "trainjob",
            "TrainingRuntime",
            "spec.template.spec.startupPolicy",
            {"startupPolicyOrder": "InOrder"},
        ),
        ("jobset", "JobSet", "spec.startupPolicy", {"startupPolicyOrder": "InOrder"}),
    ],
)
def test_the_rules_refuse_what_the_server_refuses(target: str, kind: str, path: str, value: Any) -> None:
    (document,) = [one for one in custom(a_job(), target) if one["kind"] == kind]
    parent, _, key = path.rpartition(".")
    part_of(document, parent)[key] = value
    if key == "startupPolicy":
        (replicated,) = part_of(document, parent)["replicatedJobs"]
        assert broken(document) == []
        replicated["dependsOn"] = [{"name": "data", "status": "Complete"}]
    assert len(broken(document)) == 1


@pytest.mark.parametrize(("target", "kind"), [("jobset", "JobSet"), ("trainjob", "TrainJob")])
def test_a_submitted_job_cannot_be_changed_as_next_steps_report(target: str, kind: str) -> None:
    changed = {"jobset": {"retries": 7}, "trainjob": {"nodes": 3}}[target]
    (before,) = [one for one in custom(a_job(), target) if one["kind"] == kind]
    (after,) = [one for one in custom(a_job(**changed), target) if one["kind"] == kind]
    assert broken(copy.deepcopy(before), before) == []
    assert [rule.must_hold for rule in broken(after, before)] == [_UNCHANGED]
    assert "kubectl delete" in " ".join(jobs.next_steps(target, "job.yaml"))
