"""Which pod and node an event of Kubernetes is about, where its own line does not say it."""

from __future__ import annotations

import pytest

from platform_launch.why.lines.line import NOWHERE, Location
from platform_launch.why.reading.pods import is_about_a_pod, pod_of
from tests.why.conftest import Explain

UNHEALTHY = (
    "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
)


def test_event_of_a_pod_names_the_node_that_the_scheduler_gave_it_to(explain_text: Explain) -> None:
    verdict = explain_text(
        "  Type     Reason     Age   From               Message\n"
        "  Normal   Scheduled  9m    default-scheduler  Successfully assigned ml/sft-0 to gpu-17.lan\n"
        f"  Warning  UnexpectedAdmissionError  3m  kubelet  {UNHEALTHY}\n"
    )
    assert (verdict.cause, verdict.where) == ("device_unhealthy", Location(pod="sft-0", host="gpu-17.lan"))


def test_description_of_a_pod_names_it_and_its_node(explain_text: Explain) -> None:
    verdict = explain_text(
        "Name:             sft-worker-1\nNamespace:        ml\nNode:             gpu-17/10.0.3.17\n"
        "Containers:\n  pytorch:\n    State:          Terminated\n      Reason:       OOMKilled\n"
    )
    assert (verdict.cause, verdict.where) == (
        "out_of_memory_kill",
        Location(pod="sft-worker-1", host="gpu-17"),
    )


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    3\n", 3),
        ("    State:          Terminated\n      Reason:       Completed\n      Exit Code:    0\n", None),
        ("    lastState:\n      terminated:\n        exitCode: 4\n        reason: Error\n", 4),
    ],
)
def test_exit_code_of_a_described_container_is_its_end(
    explain_text: Explain, state: str, code: int | None
) -> None:
    verdict = explain_text(f"Name:  ner-worker-0\nNode:  gpu-9/10.0.1.9\nContainers:\n{state}")
    assert verdict.cause is None
    ended = f"pod ner-worker-0, host gpu-9 ended with exit code {code}"
    assert (ended in [str(note) for note in verdict.notes]) is (code is not None)


def test_of_two_descriptions_the_one_above_counts() -> None:
    lines = [
        b"Name:  a",
        b"Node:  gpu-1/10.0.0.1",
        b"Name:  b",
        b"Namespace:  ml",
        b"Node:  gpu-2/10.0.0.2\r",
    ]
    assert pod_of("", None, lines[::-1]) == Location(pod="b", host="gpu-2")


def test_without_them_no_place_is_named() -> None:
    assert pod_of("", None, [b"Names: x", b"step 1", b"Node: none"]) == Location()


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("      Reason:       Error", True),
        ("  Warning  Failed  2m  kubelet  Error: ErrImagePull", True),
        ("2m   Warning   Failed   pod/sft-0   Error: ErrImagePull", True),
        ("Warning  Failed  2m  kubelet, gpu-3  Error: ErrImagePull", True),
        ("Reason: the loss is not finite", False),
        ("    raise RuntimeError", False),
    ],
)
def test_only_lines_of_a_description_are_looked_up(text: str, speaks: bool) -> None:
    assert is_about_a_pod(text) is speaks


def test_node_that_another_pod_found_is_no_help(explain_text: Explain) -> None:
    events = (
        "9m  Warning  FailedScheduling  pod/train-1  0/4 nodes are available: 4 Insufficient cpu.\n"
        "8m  Normal   Scheduled         pod/train-0  Successfully assigned jobs/train-0 to gpu-7\n"
    )
    assert explain_text(events).cause == "pod_unschedulable"
    assert explain_text(events.replace("train-1", "train-0")).kind == "nothing"
    assert explain_text(events.replace("train-1", "train-01")).cause == "pod_unschedulable"
    assert explain_text(events.replace("train-1", "big-train-0")).cause == "pod_unschedulable"


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ("sft-worker-1   0/1   OOMKilled   2 (3m ago)   25m", Location(pod="sft-worker-1")),
        ("ml  sft-worker-1  0/2  OOMKilled  0  25m", Location(pod="sft-worker-1")),
        (
            "sft-worker-1  0/1  OOMKilled  0  25m  10.2.0.7  gpu-17.lan  <none>  <none>",
            Location(pod="sft-worker-1", host="gpu-17.lan"),
        ),
        (
            "sft-worker-1   research   OOMKilled   gpu-17.lan   used too much",
            Location(pod="sft-worker-1", host="gpu-17.lan"),
        ),
        ("step 3/9 OOMKilled is what the kubelet calls it", NOWHERE),
    ],
)
def test_row_in_a_list_of_pods_names_the_pod(row: str, where: Location, explain_text: Explain) -> None:
    head = "NAME  READY  STATUS  RESTARTS  AGE\n"
    verdict = explain_text(f"{head}sft-master-0  1/1  Running  0  25m\n{row}\n")
    assert (verdict.cause, verdict.where) == ("out_of_memory_kill", where)


def test_event_in_a_list_is_of_the_pod_that_it_names(explain_text: Explain) -> None:
    listed = (
        "9m  Normal   Scheduled     pod/sft-0  Successfully assigned ml/sft-0 to gpu-1\n"
        "9m  Normal   Scheduled     pod/sft-1  Successfully assigned ml/sft-1 to gpu-2\n"
        '2m  Warning  Failed        pod/sft-0  Failed to pull image "lab/train:9": manifest unknown\n'
    )
    assert explain_text(listed).where == Location(pod="sft-0", host="gpu-1")
    old = 'Warning  Failed  2m (x3 over 2m)  kubelet, gpu-7  Failed to pull image "lab/train:9": unknown\n'
    assert explain_text(old).where == Location(host="gpu-7")
    waits = "Warning  BackOff  2m  kubelet  Back-off restarting failed container init-pytorch in pod sft-1_a"
    placed = listed.splitlines(keepends=True)[1]
    assert explain_text(placed + waits).where == Location(pod="sft-1", host="gpu-2")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('serviceaccount "train" not found', 'serviceaccount "train" not found'),
        ("\n" + " " * 30 + "maximum cpu usage per Container is 4, but limit is 8!", "maximum cpu usage"),
    ],
)
def test_pod_that_the_cluster_refuses_is_told_with_the_reason(
    explain_text: Explain, said: str, reason: str
) -> None:
    verdict = explain_text(
        f'Warning  FailedCreate  20s  job-controller  Error creating: pods "sft-0" is forbidden: {said}\n'
    )
    assert (verdict.cause, verdict.details["reason"].startswith(reason)) == ("pod_refused", True)


def test_first_container_that_is_started_again_and_again_has_not_passed(explain_text: Explain) -> None:
    waits = "Warning BackOff kubelet Back-off restarting failed container init-pytorch in pod fit_ml(7a)\n"
    again = "  Normal   Started  1m (x3 over 8m)  kubelet  Started container init-pytorch\n"
    assert explain_text(waits + again).cause == "pod_waits_for_master"
    assert explain_text(waits + again.replace("init-pytorch", "pytorch")).cause != "pod_waits_for_master"
