"""What came first: within a log, over nodes, and when it cannot be known."""

from __future__ import annotations

import pytest

from platform_launch.doctor.catalogue import REFUSALS
from platform_launch.events import event, in_text
from platform_launch.health.finding import IDS as DEVICE_IDS
from platform_launch.why.answer.verdict import Evidence
from platform_launch.why.explaining import explain_file
from platform_launch.why.note import note, ranks_named
from tests.why.conftest import Explain, progress, uncaught
from tests.why.corpus import LOGS

WATCHDOG = "[rank{0}]:[E1121 {1} ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"  # noqa: E501
RESET = "[rank{0}]:[W1121 {1} TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer\n"  # noqa: E501
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_first_cause_wins_over_later_consequences_of_fifteen_ranks(explain_text: Explain) -> None:
    log = progress(20) + uncaught(OOM, "[rank9]: ")
    log += "".join(RESET.format(rank, "03:04:06.1") for rank in range(16) if rank != 9)
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.rank) == ("cuda_out_of_memory", 9)
    assert [(c.id, c.count, c.of) for c in verdict.consequences] == [("connection_lost", 15, "ranks")]


def test_consequences_before_the_cause_in_a_log_do_not_hide_it(explain_text: Explain) -> None:
    verdict = explain_text(RESET.format(0, "03:04:06.1") + uncaught("ValueError: bad shape", "[rank1]: "))
    assert (verdict.cause, verdict.where.rank) == ("python_exception", 1)


def test_watchdog_alone_is_the_first_sign_and_no_cause(explain_text: Explain) -> None:
    verdict = explain_text("".join(WATCHDOG.format(rank, "03:04:05.1") for rank in range(7)))
    assert (verdict.kind, verdict.cause) == ("consequence", "nccl_watchdog")
    assert "the same on ranks 1–6" in verdict.notes


def test_unknown_exception_after_a_rank_lost_its_peer_is_no_cause(explain_text: Explain) -> None:
    verdict = explain_text(WATCHDOG.format(0, "03:04:05.1") + uncaught("MyError: state is lost", "[rank0]: "))
    assert (verdict.kind, verdict.cause) == ("consequence", "nccl_watchdog")


def test_nccl_warning_before_system_error_is_the_cause(explain_text: Explain) -> None:
    verdict = explain_text(
        "node-0:77:99 [0] misc/ibvwrap.cc:130 NCCL WARN Call to ibv_reg_mr_iova2 failed with error"
        " Cannot allocate memory\n"
        + uncaught(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled system"
            " error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
            "[rank0]: ",
        )
        + "[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("cause", "locked_memory", "node-0")
    assert [c.id for c in verdict.consequences] == ["nccl_system_error"]


def test_last_error_line_below_a_system_error_is_the_cause(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, internal error", "[rank0]: ")
        + "[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n"
        + "[rank0]: Bootstrap : no socket interface found\n"
    )
    assert verdict.cause == "no_socket_interface"


@pytest.mark.parametrize(
    ("kind", "last", "expected"),
    [
        ("remote process exited", "socketPollConnect: connect returned Connection reset", "nccl_connect"),
        ("invalid argument", "BF8 support begins with sm_77 devices", "gpu_too_old"),
    ],
)
def test_last_error_line_says_more_than_the_kind_of_error(
    explain_text: Explain, kind: str, last: str, expected: str
) -> None:
    verdict = explain_text(
        uncaught(f"torch.distributed.DistBackendError: NCCL error in: x.cpp:1, {kind}", "[rank2]: [rank2]: ")
        + f"[rank2]: [rank2]: Last error:\n[rank2]: [rank2]: {last}\n"
    )
    assert (verdict.cause, verdict.where.rank) == (expected, 2)


def test_a_crash_that_a_process_tells_comes_before_the_kill_of_its_partner(explain_text: Explain) -> None:
    crash = "solve.x:77 terminated with signal 11 at PC=4f02aa SP=7ffd1c00.  Backtrace:\n"
    hydra = (
        "= BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n= PID 79 RUNNING AT n4\n= EXIT CODE: 9\n"
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    )
    assert explain_text(hydra).cause == "killed"
    verdict = explain_text(crash + hydra)
    assert (verdict.cause, verdict.where.host) == ("segfault", "n4")


def test_system_error_alone_asks_for_the_earlier_line(explain_text: Explain) -> None:
    verdict = explain_text("RuntimeError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2\n")
    assert (verdict.kind, verdict.cause) == ("consequence", "nccl_system_error")
    assert "NCCL WARN" in verdict.fix


def test_error_that_training_survived_is_not_the_cause(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("ValueError: of yesterday") + progress(2000) + uncaught(OOM))
    assert verdict.cause == "cuda_out_of_memory"
    assert "training continued after earlier errors (errors: 1)" not in verdict.notes


def test_two_survived_errors_are_noted(explain_text: Explain) -> None:
    log = "".join(uncaught(f"ValueError: {n}") + progress(2000) for n in range(2)) + uncaught(OOM)
    verdict = explain_text(log)
    assert verdict.cause == "cuda_out_of_memory"
    assert any("training continued" in note for note in verdict.notes)


def test_cause_far_above_its_consequences_is_still_the_cause(explain_text: Explain) -> None:
    log = uncaught(OOM, "[rank3]: ") + progress(2000) + WATCHDOG.format(0, "03:04:05.1")
    assert explain_text(log).cause == "cuda_out_of_memory"


def test_output_after_the_last_error_is_noted(explain_text: Explain) -> None:
    verdict = explain_text(uncaught(OOM) + progress(2000))
    assert any("may have survived" in note for note in verdict.notes)


def test_a_summary_whose_first_failure_is_cut_off_still_tells_the_signal(explain_text: Explain) -> None:
    failure = "[{0}]:\n  host      : gn05\n  rank      : {0} (local_rank: {0})\n  exitcode  : {1} (pid: 7)\n"
    log = "ChildFailedError: \ntrain.py FAILED\nFailures:\n" + "".join(failure.format(n, -7) for n in (1, 2))
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.host) == ("bus_error", "gn05")
    assert explain_text(log + failure.format(3, -9)).cause is None


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [
        ("SIGTERM", 15, "terminated"),
        ("SIGINT", 2, "interrupted"),
        ("SIGHUP", 1, "hung_up"),
        ("SIGQUIT", 3, "interrupted"),
        ("SIGUSR1", 10, "early_warning"),
    ],
)
def test_the_signal_that_torchrun_ended_on_is_called_by_its_name(
    explain_text: Explain, name: str, number: int, expected: str
) -> None:
    agent = "W1121 03:04:05.1 42 torch/distributed/elastic"
    log = f"{agent}/agent/server/api.py:753] Received {number} death signal, shutting down workers\n"
    log += f"{agent}/multiprocessing/api.py:1028] Sending process 43 closing signal {name}\n"
    log += uncaught(
        f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 42 got signal: {number}"
    )
    assert explain_text(log).cause == expected
    asked = (
        f"[node 1] [INFO] node 0 (gpu-0) was asked to stop ({name}): stopping the training, SIGKILL in 25 s "
        f"[end-asked signal={name}]\n"
    )
    terminated = log.replace(f"{number} death", "15 death").replace(f"signal: {number}", "signal: 15")
    assert explain_text(asked + terminated).cause == expected


def test_a_log_whose_only_error_is_the_launchers_gets_that_as_its_verdict(explain_text: Explain) -> None:
    waiting = "[node 0] [INFO] waiting for 7 s: 1 of 2 nodes missing: node 1; never connected\n" * 3
    verdict = explain_text(
        f"{waiting}[node 0] error: 1 of 2 nodes missing: node 1; never connected; gave up after 60 s "
        "[nodes-absent]\n"
        "[node 0] hint:  look at the absent nodes\n"
    )
    assert (verdict.kind, verdict.cause, verdict.evidence[0].line) == ("cause", "nodes_absent", 4)


@pytest.mark.parametrize("log_of", [0, 1])
def test_a_hang_that_the_launcher_ended_is_no_end_from_outside(explain_text: Explain, log_of: int) -> None:
    prefix = f"[node {log_of}] "
    verdict = explain_text(
        f"{prefix}10:00:01 [WARN] no progress for 300 s: rank 1 sleeps [no-progress kind=hang ranks=1]\n"
        f"{prefix}10:00:02 [INFO] the training hung: stopping the training, SIGKILL in 1.5 s [end-asked]\n"
        f"{prefix}W1121 03:04:05.1 42 torch/distributed/elastic/agent.py:753] Received 15 death signal\n"
        f"{prefix}10:00:04 [ERROR] the training hung at node 1 (gn1), and it ended [node-hung node=1]\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.node) == ("cause", "hang", 1)


def test_every_refusal_of_the_doctor_is_known(explain_text: Explain) -> None:
    for name in REFUSALS:
        verdict = explain_text(f"error: what was found [{name}]\n")
        unfit = name in DEVICE_IDS
        assert (verdict.cause, verdict.retry) == (
            ("node_unfit", "another_node") if unfit else ("launch_refused", "no")
        ), name


def test_another_nodes_failure_is_quoted_and_not_taken_for_ones_own(explain_text: Explain) -> None:
    verdict = explain_text(
        "[node 0] 12:00:01 [ERROR] node 1, gpu-1: the training ended with exit code 9 [node-failed node=1]\n"
        "[node 0] 12:00:01 [ERROR]   | torch.OutOfMemoryError: CUDA out of memory [node-quoted node=1]\n"
    )
    assert (verdict.kind, verdict.cause) == ("consequence", "other_node_failed")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("before", [True, False], ids=["before it was asked to end", "while it ended"])
def test_node_that_names_another_one_keeps_the_cause_it_had_before_it_was_asked_to_end(
    explain_text: Explain, before: bool, swapped: bool
) -> None:
    named = "12:00:09 [ERROR] node 0: the training ended with exit code 1 [node-failed node=0]\n"
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:38803"
    asked = "[node 1] 12:00:05 [INFO] node 0: stopping the training, SIGKILL in 25 s [end-asked]\n"
    error = uncaught("KeyError: 'label'", "[node 1] [rank1]: ")
    one = (error + asked if before else asked + error) + "[node 1] " + named
    zero = uncaught(lost, "[node 0] [rank0]: ") + "[node 0] " + named
    verdict = explain_text(one, zero) if swapped else explain_text(zero, one)
    expected = ("cause", "python_exception", 1) if before else ("consequence", "connection_lost", 0)
    assert (verdict.kind, verdict.cause, verdict.where.node) == expected


def test_success_of_the_launcher_ends_the_question(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught(OOM) + progress(5) + "[SUCCESS] training finished after 3 min 2 s [training-finished]\n"
    )
    assert (verdict.kind, verdict.cause) == ("finished", None)
    assert verdict.lines() == ["cause:      none: the training finished"]


def test_traceback_that_was_caught_is_a_suspect_at_most(explain_text: Explain) -> None:
    caught = (
        "ERROR:root:no fused attention\nTraceback (most recent call last):\n"
        '  File "/workspace/train.py", line 4, in setup\n    optional()\nImportError: flash\n'
    )
    assert explain_text(caught + "saved\n" * 3).kind == "suspect"
    assert explain_text(caught + progress(12)).kind == "nothing"
    verdict = explain_text(caught + uncaught("RuntimeError: real"))
    assert verdict.title == "RuntimeError: real"


def test_warning_that_quotes_a_known_message_is_no_cause(explain_text: Explain) -> None:
    quoting = "[WARN] cannot write the log any more: /logs/a.log: No space left on device\n"
    verdict = explain_text(quoting + uncaught("RuntimeError: real"))
    assert verdict.title == "RuntimeError: real"


@pytest.mark.parametrize(
    "warning",
    [
        "/env/cuda.py:1: UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
        "[W reducer.cpp:1300] Warning: ModuleNotFoundError: No module named 'apex'",
        "flash_attn is not installed (No module named 'flash_attn'), going on without: CUDA out of memory?",
    ],
)
def test_warning_of_a_healthy_run_is_no_cause(explain_text: Explain, warning: str) -> None:
    assert explain_text(f"{warning}\n{uncaught('RuntimeError: real')}").title == "RuntimeError: real"


def test_traceback_behind_a_prefix_that_calls_it_a_warning_ended_nothing(explain_text: Explain) -> None:
    graph = uncaught(
        "FileNotFoundError: [Errno 2] No such file or directory: 'm.ir'", "compile.frame: [WARNING] "
    )
    assert explain_text(graph + "saved\n" * 3).kind == "nothing"
    assert explain_text(graph + uncaught("RuntimeError: real")).title == "RuntimeError: real"
    assert explain_text(graph.replace("WARNING", "ERROR")).cause == "file_missing"


def test_fields_before_a_message_say_who_wrote_it(explain_text: Explain) -> None:
    said = "CUDA out of memory. GPU 1 has a total capacity of 79.10 GiB\n"
    verdict = explain_text(
        f"[2026-08-23 17:42:11.030] node=gpu-7 rank=3 torch.OutOfMemoryError: {said}" + WATCHDOG
    )
    assert (verdict.cause, verdict.where.host, verdict.where.rank) == ("cuda_out_of_memory", "gpu-7", 3)


def test_rank_in_a_message_does_not_tear_its_traceback_apart(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("RuntimeError: [PG 0 Rank 5] widget is odd"))
    assert verdict.exception is not None
    assert (verdict.where.rank, verdict.exception.line) == (5, 88)


def test_earlier_node_wins_by_its_clock(explain_text: Explain) -> None:
    verdict = explain_text(
        train_a_node0_x="[2026-11-21 03:04:09,000] [INFO] go\n" + uncaught("ValueError: late")
        + "[2026-11-21 03:04:10,000] [INFO] bye error\n",
        train_a_node1_x="[2026-11-21 03:04:01,000] [INFO] go\n" + uncaught("ValueError: early")
        + "[2026-11-21 03:04:02,000] [INFO] bye error\n",
    )  # fmt: skip
    assert (verdict.title, verdict.where.node) == ("ValueError: early", 1)
    assert not any("do not show" in note for note in verdict.notes)


def test_clock_offset_turns_the_order_around(explain_text: Explain) -> None:
    def at(second: int, message: str) -> str:
        return f"[2026-11-21 03:04:{second:02},000] [ERROR] {message}\n"

    logs = {
        "x_node0": at(9, "CUDA error: invalid device ordinal"),
        "x_node1": at(4, "Duplicate GPU detected"),
    }
    assert explain_text(**logs).cause == "duplicate_gpu"
    assert explain_text(**logs, offsets={"x_node0": 8.0}).cause == "invalid_device"


def test_order_over_new_year_is_the_order_of_time(explain_text: Explain) -> None:
    verdict = explain_text(
        x_node0="E0101 00:00:05.000000 12 a.cc:1] CUDA error: invalid device ordinal\n",
        x_node1="E1231 23:59:58.000000 12 a.cc:1] Duplicate GPU detected\n",
    )
    assert verdict.where.node == 1


def test_without_times_the_more_specific_cause_is_named_and_the_other_noted(explain_text: Explain) -> None:
    verdict = explain_text(
        x_node0=uncaught("ValueError: perhaps first"),
        x_node1=uncaught(OOM),
    )
    assert (verdict.cause, verdict.where.node) == ("cuda_out_of_memory", 1)
    assert verdict.notes == (
        "the logs do not show which came first; also ValueError: perhaps first on node 0 (x_node0:8)",
    )


def test_pods_on_one_stream_are_not_ordered_by_its_lines(explain_text: Explain) -> None:
    stream = uncaught("ValueError: printed first", "[pod/job-0-abcde/main] ")
    stream += uncaught(OOM, "[pod/job-1-fghij/main] ")
    verdict = explain_text(stream)
    assert (verdict.cause, verdict.where.pod) == ("cuda_out_of_memory", "job-1-fghij")
    assert any("do not show" in note for note in verdict.notes)


def test_warning_of_nemo_is_not_the_first_error(explain_text: Explain) -> None:
    warning = "[NeMo W 2026-06-04 14:58:08 exp_manager:895] ensure that checkpointing will not error out.\n"
    verdict = explain_text(f"{warning}error: the launcher gave up\n")
    assert verdict.lines()[0].endswith("log0:2: error: the launcher gave up")


def test_lone_process_named_by_torchrun_gives_the_rank_of_a_traceback_without_one(
    explain_text: Explain,
) -> None:
    summary = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "=====\ntrain.py FAILED\n-----\nFailures:\n  <NO_OTHER_FAILURES>\n-----\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_04:14:56\n"
        "  host      : gpu-07\n  rank      : 11 (local_rank: 3)\n  exitcode  : 1 (pid: 25835) \n=====\n"
    )
    verdict = explain_text(uncaught("ValueError: bad") + summary)
    assert (verdict.where.rank, verdict.where.host) == (11, "gpu-07")


def test_counted_out_of_memory_kill_answers_where_the_log_knows_only_consequences(
    explain_text: Explain,
) -> None:
    log = RESET.format(0, "03:04:06.1")
    assert explain_text(log, oom_kills=2).cause == "out_of_memory_kill"
    assert explain_text(log, oom_kills=0).cause == "connection_lost"


def test_known_cause_stays_the_cause_whatever_the_kernel_counted(explain_text: Explain) -> None:
    assert explain_text(uncaught(OOM), oom_kills=1).cause == "cuda_out_of_memory"


def test_name_that_resolved_later_does_not_explain_an_exception(explain_text: Explain) -> None:
    waiting = (
        "[W1121 03:04:05.7 socket.cpp:764] [c10d] The IPv6 network addresses of (node-0, 29500) cannot be"
        " retrieved (gai error: -2 - Name or service not known).\n"
    )
    assert explain_text(waiting * 5 + uncaught("ValueError: bad")).cause == "python_exception"


def test_own_verdict_in_a_log_is_not_read_as_evidence(explain_text: Explain) -> None:
    first = explain_text(uncaught(OOM)).lines()
    said = "".join(f"[node 0] [ERROR] {line} [verdict]\n" for line in first)
    assert explain_text(said).kind == "nothing"


def test_launch_whose_end_is_not_told_may_still_run(explain_text: Explain) -> None:
    opened = in_text(event("launch-opened", version="1", node_rank=0, nnodes=2, job="a")) + "\n"
    running = explain_text(opened + "step 1 loss 0.4\n")
    assert (running.kind, [one.id for one in running.noted]) == ("nothing", ["no-end", "ends-with"])
    again = in_text(event("training-finished", duration="1 s")) + "\n" + opened
    assert [one.id for one in explain_text(opened + again).noted] == ["no-end", "ends-with"]
    stopped = in_text(event("training-stopped", duration="1 s", reason="asked", exit_code=0)) + "\n"
    assert [one.id for one in explain_text(opened + stopped).noted] == ["ends-with"]


@pytest.mark.parametrize(
    "said",
    [
        "ep_ctrl_init():155<warn> Request for hugepages failed, falling back",
        "dom():9<info> no error, auth key 1",
    ],
)
def test_what_the_slingshot_library_did_without_is_no_cause(said: str, explain_text: Explain) -> None:
    log = f"libfabric:12:1795000000::cxi:core:cxip_{said}\n"
    assert explain_text(log + uncaught(OOM)).cause == "cuda_out_of_memory"


def test_actor_that_died_before_others_timed_out_stays_the_cause(explain_text: Explain) -> None:
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    watchdog = WATCHDOG.format(2, "03:04:05.1")
    assert explain_text(watchdog + died).cause == "nccl_watchdog"
    assert explain_text(died + progress(9) + watchdog).cause == "ray_actor_died"


@pytest.mark.parametrize(
    ("exited", "expected"),
    [
        ("gn14: task 3", "exited_first"),
        ("gn13: task 3", "exited_first"),
        ("gn13: task 0", "abort"),  # what it says itself comes after srun's line
    ],
)
def test_task_that_ended_first_answers_where_the_others_only_suffered(
    exited: str, expected: str, explain_text: Explain
) -> None:
    log = f"srun: error: {exited}: Exited with exit code 1\n" + RESET.format(0, "03:04:06.1")
    log += "srun: error: gn13: tasks 1-2: Aborted (core dumped)\n"
    assert explain_text(log).cause == expected
    assert explain_text(RESET.format(0, "03:04:06.1") + log).cause == "abort"


def test_rank_whose_exception_quotes_the_timeout_is_not_the_silent_one() -> None:
    verdict = explain_file(LOGS / "watchdog_quoted_by_exception.log")
    silent = next(one for one in verdict.noted if one.id == "no-timeout")
    assert silent == note("no-timeout", ranks=ranks_named([2]))


def test_a_call_of_mpi_abort_is_told_with_the_error_above_it(explain_text: Explain) -> None:
    above = "     Error in routine read_input (1):\n"
    abort = (
        "Abort(1) on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0\n"
    )
    told = note("error-above", log="log0", line=1, text="Error in routine read_input (1):")
    assert told in explain_text(above + abort).noted
    assert explain_text(abort).noted == ()
    banner = abort + "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    assert explain_text(banner + above.lstrip()).first_error == Evidence("log0", 3, above.strip())
    verdict = explain_text("deck.nml: ERROR: no group named &physics\n\n" + abort)
    assert verdict.first_error == Evidence("log0", 1, "deck.nml: ERROR: no group named &physics")
    assert (verdict.where.rank, verdict.consequences) == (0, ())


def test_a_step_cancelled_before_its_tasks_lose_each_other_was_cancelled(explain_text: Explain) -> None:
    cancelled = "slurmstepd: error: *** STEP 7.0 ON gn31 CANCELLED AT 2026-11-22T09:51:30 ***\n"
    failed = "[gn31:4471] *** An error occurred in MPI_Send\n"
    assert explain_text(cancelled + failed).cause == "job_cancelled"
    assert explain_text(failed + cancelled).cause == "mpi_error"


def test_hook_that_failed_explains_why_the_container_did_not_start(explain_text: Explain) -> None:
    said = "3: slurmstepd: error: pyxis:"
    start = f"{said} container start failed with error code: 1\n{said} printing enroot log file:\n"
    hook = f"{said}     [ERROR] /etc/enroot/hooks.d/50-nics.sh exited with return code 1\n"
    verdict = explain_text(f"{start}{said}     [ERROR] No such program: ldconfig\n{hook}")
    assert (verdict.cause, verdict.where.task) == ("container_hook", 3)
    assert verdict.details["hook"] == "50-nics.sh"
    gpus = f"{said}     nvidia-container-cli: initialization error: nvml error: driver not loaded\n"
    assert explain_text(f"{start}{gpus}{hook}").cause == "container_gpu"


def test_container_that_does_not_start_tells_what_its_runtime_said(explain_text: Explain) -> None:
    said = "slurmstepd: error: pyxis:"
    verdict = explain_text(
        f"{said} container start failed with error code: 1\n{said} printing enroot log file:\n"
        f"{said}     [ERROR] Failed to parse the image's configuration\n"
    )
    assert (verdict.cause, verdict.details["reason"]) == (
        "container_start",
        "Failed to parse the image's configuration",
    )


def test_what_a_library_says_as_it_stops_is_no_cause(explain_text: Explain) -> None:
    verdict = explain_text(
        "2031-02-03 04:05:06.1: E collective_executor.cc:9] StartAbort DEADLINE_EXCEEDED: Deadline Exceeded\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:2:\n"
        "2031-02-03 04:05:06.2: F grpc_server_lib.cc:8] Non-OK-status: Stop() status: UNIMPLEMENTED: Clean "
        "shutdown is not currently implemented\n"
        "Fatal Python error: Aborted\n"
    )
    assert (verdict.cause, str(verdict.where)) == ("jax_barrier", "task 2")


def test_parameter_is_named_in_the_advice(explain_text: Explain) -> None:
    twice = "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of:\n"
    named = "Parameter at index 7 with name head.2.weight has been marked as ready twice.\n"
    for lines in (twice + named, twice.rstrip() + " " + named):
        assert "how head.2.weight is used" in explain_text(lines).fix
    assert "TORCH_DISTRIBUTED_DEBUG" in explain_text(twice).fix


def test_address_that_grpc_gives_as_json_is_the_peer(explain_text: Explain) -> None:
    verdict = explain_text(
        'I0203 04:05:06.7 4007 subchannel.cc:6] Connect failed: {"errno":111,"os_error":"Connection refused",'
        '"syscall":"connect","target_address":"ipv4:10.0.1.4:14417"}\n'
    )
    assert (verdict.cause, verdict.details["peer"]) == ("connection_refused", "10.0.1.4")
