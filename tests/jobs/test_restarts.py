"""When a job starts again, when it ends, and after how long: by each controller's own rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from platform_launch.errors import LaunchError
from platform_launch.jobs import TARGETS, codes, render
from platform_launch.jobs.codes import fatal, retried
from platform_launch.jobs.job import Job
from tests.jobs.job_controller import Ended, JobController
from tests.jobs.manifests import a_job, documents, job_specs, pod_templates

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
JOBS = ["kubernetes", "jobset", "trainjob"]
CONTAINERS = {"kubernetes": "training", "jobset": "training", "trainjob": "node"}


def controller(job: Job, target: str) -> JobController:
    (spec,) = job_specs(documents(render(job, target)))
    for rule in spec["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            assert rule["onExitCodes"].pop("containerName") == CONTAINERS[target]
            rule["onExitCodes"]["containerName"] = "training"
    return JobController(spec)


def test_every_error_has_a_row_in_the_table() -> None:
    """70 is a fault of the launcher itself: nobody knows, so it counts as an attempt."""
    families = {family.exit_code for family in LaunchError.__subclasses__()} - {LaunchError.exit_code}
    assert families == {outcome.code for outcome in codes.OUTCOMES}
    assert fatal(spares=False) == (64, 65, 66, 67, 76)
    assert fatal(spares=True) == (64, 65, 66)
    assert retried(spares=False) == (69, 75, 77, 78)
    assert retried(spares=True) == (67, 69, 75, 76, 77, 78)


def test_the_how_to_prints_the_same_table() -> None:
    assert codes.table() in (HOW_TO / "submit-a-job.md").read_text("utf-8")


def rows(page: str, first: str) -> dict[str, list[str]]:
    """The rows of the table whose first heading is ``first``, by what their first cell names."""
    text = (HOW_TO / page).read_text("utf-8")
    table = text[text.index(f"| {first} |") :].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    return {name: rest for label, *rest in cells for name in re.findall(r"[\w ]+", label) if name.strip()}


def test_the_chinese_how_to_has_the_same_codes_and_consequences() -> None:
    chinese = {"ends the job": "结束作业", "counts as a failed attempt": "算一次失败"}
    table = rows("submit-a-job.zh-CN.md", "退出码")
    assert {int(code) for code in table if code.isdigit()} == {
        *(outcome.code for outcome in codes.OUTCOMES),
        codes.STOPPED,
    }
    for outcome in codes.OUTCOMES:
        _meaning, *consequences = table[str(outcome.code)]
        expected = [
            chinese["ends the job" if ends else "counts as a failed attempt"]
            for ends in (outcome.ends_job, outcome.ends_with_spares)
        ]
        assert consequences == expected, outcome.code


@pytest.mark.parametrize("target", JOBS)
def test_the_how_to_reports_what_the_manifests_of_jobs_do(target: str) -> None:
    ends, attempt, stopped = rows("submit-a-job.md", "target | a code that ends the job")[target]
    watched = controller(a_job(), target)
    assert {watched.verdict(Ended(code)) for code in fatal(spares=False)} == {"FailJob"}
    assert ends == "ends the job"
    assert watched.verdict(Ended(codes.STOPPED)) == "Ignore"
    assert stopped == "the pods start again, not counted"
    (spec,) = job_specs(documents(render(a_job(retries=3), target)))
    assert spec["backoffLimitPerIndex"] == (3 if "per node" in attempt else 0)
    assert ("`retries` times per node" if target == "kubernetes" else "all start again") in attempt


def test_the_how_to_reports_what_the_manifests_of_other_targets_do() -> None:
    table = rows("submit-a-job.md", "target | a code that ends the job")
    (volcano,) = documents(render(a_job(retries=3), "volcano"))
    assert table["volcano"][:2] == ["ends the job", "all start again, `retries` times"]
    assert {restarts_of_volcano(volcano["spec"], code) for code in fatal(spares=False)} == {0}
    assert restarts_of_volcano(volcano["spec"], 1) == 3
    (at_once,) = documents(render(a_job(retries=0), "volcano"))
    assert table["volcano"][2] == "all start again, counted; at most twice with `retries: 0`"
    assert restarts_of_volcano(at_once["spec"], codes.STOPPED) == 2
    (lws,) = documents(render(a_job(), "leaderworkerset"))
    assert all(cell.startswith("all start again") for cell in table["leaderworkerset"])
    assert lws["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert "(`--max-restarts`)" in table["pytorchjob"][1]
    assert "--max-restarts" in render(a_job(retries=3), "pytorchjob")
    assert set(table) == {*TARGETS}


def test_no_code_after_which_a_spare_steps_in_ends_the_job() -> None:
    page = (HOW_TO / "spare-nodes.md").read_text("utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| a node cannot start")]
    replaced = {int(number) for number in re.findall(r"\b\d\d\b", row.split("|")[1])}
    assert replaced == {67, 69, 76, 78}
    assert not replaced & {*fatal(spares=True)}
    for target in ("kubernetes", "jobset"):
        watched = controller(a_job(spares=1), target)
        assert {watched.verdict(Ended(code)) for code in replaced} == {"Count"}


@pytest.mark.parametrize("target", JOBS)
def test_a_job_ends_at_once_on_codes_that_no_restart_helps(target: str) -> None:
    for code in fatal(spares=False):
        watched = controller(a_job(), target)
        assert watched.end(0, Ended(code)) is None
        assert watched.ended == "PodFailurePolicy"


@pytest.mark.parametrize("target", JOBS)
@pytest.mark.parametrize("nodes", [2, 7, 64])
def test_a_drain_costs_no_retry_and_ten_seconds_whatever_the_number_of_nodes(target: str, nodes: int) -> None:
    """One pod is evicted, and its peers end with the whole run's code."""
    watched = controller(a_job(nodes=nodes, retries=0), target)
    delays = [watched.end(index, Ended(143, disrupted=index == 0)) for index in range(nodes)]
    assert delays == [10] * nodes
    assert watched.ended is None


def test_one_limit_for_all_pods_would_let_seven_nodes_wait_for_ten_minutes() -> None:
    (spec,) = job_specs(documents(render(a_job(nodes=7), "kubernetes")))
    del spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]
    watched = JobController({**spec, "backoffLimit": 21})
    assert [watched.end(index, Ended(143)) for index in range(7)][-1] == 600


@pytest.mark.parametrize("nodes", [2, 7, 64])
def test_a_plain_job_starts_again_after_10_20_and_40_seconds_and_then_fails(nodes: int) -> None:
    watched = controller(a_job(nodes=nodes, retries=3), "kubernetes")
    for delay in (10, 20, 40):
        ended = [Ended(1), *[Ended(75)] * (nodes - 1)]
        assert [watched.end(index, pod) for index, pod in enumerate(ended)] == [delay] * nodes
    assert watched.ended is None
    assert watched.end(0, Ended(1)) is None
    assert watched.ended == "MaxFailedIndexesExceeded"


@pytest.mark.parametrize("target", ["jobset", "trainjob"])
def test_the_first_failure_goes_to_the_jobset_which_starts_all_again(target: str) -> None:
    watched = controller(a_job(retries=2), target)
    assert watched.end(1, Ended(1)) is None
    assert watched.ended == "MaxFailedIndexesExceeded"
    policy = jobset_spec(target, a_job(retries=2))["failurePolicy"]
    assert policy["maxRestarts"] == 2
    assert [rule["action"] for rule in policy["rules"]] == ["FailJobSet"]
    assert watched.ended not in policy["rules"][0]["onJobFailureReasons"]
    assert "PodFailurePolicy" in policy["rules"][0]["onJobFailureReasons"]


def jobset_spec(target: str, job: Job) -> dict[str, Any]:
    document = documents(render(job, target))[0]
    spec: dict[str, Any] = document["spec"] if target == "jobset" else document["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("target", JOBS)
def test_the_exit_code_of_a_sidecar_means_nothing(target: str) -> None:
    watched = controller(a_job(), target)
    assert watched.verdict(Ended(1, sidecar=143)) == "Count"
    assert watched.verdict(Ended(143, sidecar=64)) == "Ignore"


def test_without_a_container_name_a_sidecar_would_hide_a_failure() -> None:
    watched = controller(a_job(), "kubernetes")
    (spec,) = job_specs(documents(render(a_job(), "kubernetes")))
    for rule in spec["podFailurePolicy"]["rules"]:
        rule.get("onExitCodes", {}).pop("containerName", None)
    assert JobController(spec).verdict(Ended(1, sidecar=143)) == "Ignore"
    assert watched.verdict(Ended(1, sidecar=143)) == "Count"


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
@pytest.mark.parametrize("code", [67, 69, 75, 76, 78])
@pytest.mark.parametrize("retries", [0, 3])
def test_a_job_with_a_spare_outlives_a_node_that_is_never_well_again(
    target: str, code: int, retries: int
) -> None:
    watched = controller(a_job(nodes=2, spares=1, retries=retries), target)
    ends = [watched.end(1, Ended(code)) for _ in range(retries + 1)]
    assert ends == [*[10, 20, 40][:retries], None]
    assert watched.ended is None
    watched.end(0, Ended(0))
    watched.end(2, Ended(0))
    assert watched.ended == "Complete"


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_more_lost_nodes_than_spares_end_the_job(target: str) -> None:
    watched = controller(a_job(nodes=2, spares=1, retries=0), target)
    watched.end(1, Ended(78))
    assert watched.ended is None
    watched.end(0, Ended(75))
    assert watched.ended == "MaxFailedIndexesExceeded"


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_retries_of_a_pytorchjob_are_the_launchers(retries: int) -> None:
    """The operator restarts no pod below 128, and counts no restart of the others (job.go, pod.go)."""
    (document,) = documents(render(a_job(retries=retries), "pytorchjob"))
    for template in pod_templates(document):
        arguments = " ".join(template["spec"]["containers"][0].get("args", []))
        assert arguments == (f"--max-restarts {retries}" if retries else "")
    # 0 would end the job at the first preempted pod: it fails where 1 exceeds the limit.
    assert document["spec"]["runPolicy"]["backoffLimit"] == max(1, retries)
    policies = {group["restartPolicy"] for group in document["spec"]["pytorchReplicaSpecs"].values()}
    assert policies == {"ExitCode"}
    (chosen,) = documents(render(a_job(options=("--max-restarts=9",)), "pytorchjob"))
    assert "'--max-restarts'" not in str(chosen)


def restarts_of_volcano(spec: dict[str, Any], code: int) -> int:
    """How often Volcano starts a job again whose pods always end with ``code`` (its restarting.go).

    The first policy that fits decides; a restart raises retryCount, and at maxRetry the job has failed.
    """
    policy = next(
        policy
        for policy in spec["policies"]
        if code == policy.get("exitCode") or policy.get("event") == "PodFailed"
    )
    if policy["action"] != "RestartJob":
        return 0
    count, restarts = 0, 0
    while (count := count + 1) < spec.get("maxRetry", 3):
        restarts += 1
    return restarts


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_volcano_starts_again_as_often_as_asked_but_not_on_codes_that_end_the_job(retries: int) -> None:
    (document,) = documents(render(a_job(retries=retries), "volcano"))
    assert restarts_of_volcano(document["spec"], 1) == retries
    assert restarts_of_volcano(document["spec"], 75) == retries
    assert {restarts_of_volcano(document["spec"], code) for code in fatal(spares=False)} == {0}
    assert restarts_of_volcano(document["spec"], 143) == (retries or 2)


def test_finished_jobs_are_deleted_after_a_week_or_as_long_as_asked() -> None:
    for given, kept_s in ({}, 604_800), ({"ttl_s": 3600}, 3600):
        job = a_job(**given)
        assert documents(render(job, "kubernetes"))[1]["spec"]["ttlSecondsAfterFinished"] == kept_s
        for target in ("jobset", "volcano"):
            (document,) = documents(render(job, target))
            assert document["spec"]["ttlSecondsAfterFinished"] == kept_s
        (document,) = documents(render(job, "pytorchjob"))
        assert document["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == kept_s
        # A child Job that is deleted by itself would be created anew.
        assert "ttlSecondsAfterFinished" not in render(job, "trainjob")


@pytest.mark.parametrize("target", ["kubernetes", "jobset", "pytorchjob", "trainjob", "volcano", "kubebrain"])
def test_a_pod_on_a_silent_node_is_deleted_after_two_minutes(target: str) -> None:
    for template in pod_templates(documents(render(a_job(), target))):
        after_s = {item["key"]: item.get("tolerationSeconds") for item in template["spec"]["tolerations"]}
        assert after_s == {"node.kubernetes.io/not-ready": 120, "node.kubernetes.io/unreachable": 120}
