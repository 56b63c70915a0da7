"""One thing said in several ways, and several things said alike."""

from __future__ import annotations

import pytest

from platform_launch.why.lines.line import parse, plain
from platform_launch.why.reading.error_lines import says_error
from tests.why.conftest import Explain

SPAWN = """Traceback (most recent call last):
  File "start.py", line 31, in <module>
    spawn(train, nprocs=4)
  File "/env/lib/python3.8/site-packages/torch/multiprocessing/spawn.py", line 112, in join
    (error_index, exitcode)
{}
"""
NAMES = ("Exception", "torch.multiprocessing.spawn.ProcessExitedException")
IN_HANDLER = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 66, in handler
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 501) is killed by signal: Killed.
"""
SUMMARY = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
{}Root Cause (first observed failure):
[0]:
  time      : 2026-03-03_09:10:11
  host      : gpu-7
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 900)
============================================================
"""
FURTHER = """Failures:
[1]:
  time      : 2026-03-03_09:10:12
  host      : gpu-8
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 901)
"""


@pytest.mark.parametrize("name", NAMES)
def test_launcher_that_lost_a_spawned_process_names_it_and_no_cause(explain_text: Explain, name: str) -> None:
    verdict = explain_text(SPAWN.format(f"{name}: process 2 terminated with exit code 17"))
    assert (verdict.kind, verdict.cause, verdict.where.local_rank) == ("unknown", None, 2)
    assert [one.values["code"] for one in verdict.noted if one.id == "process-ended"] == [17]


@pytest.mark.parametrize("name", NAMES)
def test_signal_of_a_spawned_process_is_told_with_its_number(explain_text: Explain, name: str) -> None:
    verdict = explain_text(SPAWN.format(f"{name}: process 3 terminated with signal SIGSEGV"))
    assert (verdict.cause, verdict.where.local_rank) == ("segfault", 3)


@pytest.mark.parametrize(
    "code",
    [
        "    return step(**given, **more)",
        "    return f(x, **given) + g(y, **more)",
        "    area = a ** 2 + b**2 + c **2",
        "*** Aborted at 1 (unix time) ***",
        "dict(first, **given ) or dict(second, **more )",
        "**" * 400,
    ],
)
def test_stars_of_code_stay(code: str) -> None:
    assert plain(code.encode()) == code


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            'wandb.errors.CommError: 403: {"message":"permission denied","code":"PERMISSION_ERROR"}',
            "wandb_permission",
        ),
        ("wandb: ERROR 401 Unauthorized: user is not logged in", "wandb_login"),
        (
            "ROCM backend failed to initialize: device query failed: CUDA_ERROR_NOT_INITIALIZED",
            "jax_backend",
        ),
        ("RuntimeError: CUDA driver error: CUDA_ERROR_NOT_INITIALIZED", "cuda_start"),
        ("[E socket.cpp:9] [c10d] The server socket has failed to listen on [::]:81 ", "port_in_use"),
        (
            "ps::Van: [01:02:03] src/van.cc:70: Check failed: !ip.empty() failed to get ip",
            "pslite_no_address",
        ),
    ],
)
def test_each_is_called_by_its_own_name(explain_text: Explain, line: str, cause: str) -> None:
    assert explain_text(f"{line}\n").cause == cause


@pytest.mark.parametrize(
    "line",
    [
        "[c10d] The server socket has failed to bind to [::]:29511 (errno: 98 - Address already in use).",
        "DistNetworkError: failed to listen on any address. port: 29511, useIpv6: false, name: EADDRINUSE",
        "ConnectionError: Tried to launch distributed communication on port `29511`, but another process",
    ],
)
def test_port_that_is_taken_is_named(explain_text: Explain, line: str) -> None:
    assert explain_text(f"{line}\n").details == {"port": "29511"}


def test_port_of_the_warnings_above_is_told_with_the_error(explain_text: Explain) -> None:
    verdict = explain_text(
        "[W socket.cpp:9] [c10d] The server socket has failed to bind to [::]:29511 "
        "(errno: 98 - Address already in use).\n"
        "[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address.\n"
    )
    assert (verdict.kind, verdict.cause, verdict.details) == ("cause", "port_in_use", {"port": "29511"})
    assert verdict.evidence[0].line == 2


@pytest.mark.parametrize("end", ["exited with", "exits with", "exit with"])
def test_line_that_only_says_that_a_process_ended_says_no_error(end: str) -> None:
    assert not says_error(parse(1, f"[ERROR] Scheduler process 812 {end} exception.".encode()))
    assert says_error(parse(1, f"[ERROR] worker 3 {end} code 2: no licence left".encode()))
    assert says_error(parse(1, b"[ERROR] the worker cannot find the exit node"))


def test_node_that_mindspore_waited_for_is_named(explain_text: Explain) -> None:
    verdict = explain_text(
        "[ERROR] ME(12:34,Main):2026-03-03 [x/_api.py:33] Scheduler process 812 exit with exception.\n"
        "[ERROR] ME(12:34,Main):2026-03-03 [x/_api.py:43] Time out nodes are ['6']\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.node) == ("consequence", "mindspore_node_timeout", 6)


def test_line_that_a_signal_interrupted_is_not_blamed(explain_text: Explain) -> None:
    verdict = explain_text(IN_HANDLER)
    assert (verdict.kind, verdict.cause) == ("cause", "worker_exited")
    assert not [line for line in verdict.lines("en") if line.startswith("raised at:")]


def test_one_end_is_told_once_and_several_all(explain_text: Explain) -> None:
    assert [one.id for one in explain_text(SUMMARY.format("")).noted] == ["process-ended"]
    several = explain_text(
        SUMMARY.format("") + SUMMARY.format(FURTHER).replace("rank      : 0", "rank      : 2")
    )
    assert [one.id for one in several.noted] == ["process-ended", "tasks-ended"]
