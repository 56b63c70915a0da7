"""What a process got over: work below a line that says a cause, by the clock where there is one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from platform_launch.why.lines.line import parse
from platform_launch.why.messages.signatures import catalogue
from platform_launch.why.reading.error_lines import hints_at_error
from tests.why.conftest import Explain, progress, uncaught

FAULT = "CUDA error: an illegal memory access was encountered\n"
ENDED = "srun: error: gn03: task 3: Exited with exit code 1\n"
WATCHDOG = (
    "[rank0]:[E1121 03:04:05.1 x.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=77, OpType=ALLREDUCE) ran for 600061 milliseconds before timing out.\n"
)


def clocked(minute: int, steps: int = 12) -> str:
    """Work that was logged in a minute, whenever it was written."""
    return "".join(f"2026-01-02 03:{minute:02}:{n:02} step {n} loss 0.5\n" for n in range(steps))


def test_steps_below_a_fault_leave_it_open_whether_it_ended_the_process(explain_text: Explain) -> None:
    assert explain_text(FAULT + progress(3) + ENDED).kind == "cause"
    verdict = explain_text(FAULT + progress(12) + ENDED)
    assert (verdict.kind, verdict.cause) == ("suspect", "illegal_memory_access")
    assert explain_text(FAULT + progress(400) + ENDED).cause == "exited_first"


def test_the_clock_tells_whether_work_went_on_below_a_fault(explain_text: Explain) -> None:
    fault = f"2026-01-02 03:10:30 {FAULT}"
    assert explain_text(fault + clocked(9) + ENDED).kind == "cause"
    assert explain_text(fault + clocked(10, 60) + ENDED).kind == "suspect"
    assert explain_text(fault + clocked(20) + ENDED).cause == "exited_first"


def test_where_work_goes_on_to_the_end_of_a_log_nothing_failed(explain_text: Explain) -> None:
    warned = "gn1:7:9 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    assert explain_text(warned).cause == "ib_not_found"
    assert explain_text(warned + progress(1)).kind == "nothing"
    verdict = explain_text(FAULT + progress(12))
    assert (verdict.kind, [one.id for one in verdict.noted]) == ("nothing", ["errors-survived", "ends-with"])
    assert explain_text("ERROR cache: shard 3 is stale\n" + progress(12)).kind == "nothing"
    assert explain_text(uncaught("KeyError: 'x'") + progress(12)).kind == "cause"
    assert explain_text(progress(12) + WATCHDOG).cause == "nccl_watchdog"


def test_a_vague_line_answers_only_where_a_log_ends_with_it(explain_text: Explain) -> None:
    moved = "slurmstepd: error: couldn't chdir to `/scratch/u': No such file: going to /tmp instead\n"
    warned = "gn1:7:9 [0] hipify/init.cc:303 NCCL WARN cutoff points not detected for an arch\n"
    for line, cause in ((moved, "slurm_folder"), (warned, "nccl_warning")):
        assert explain_text(line).cause == cause
        verdict = explain_text(line + "4 8.60\n" * 5)
        assert (verdict.kind, [one.id for one in verdict.noted]) == ("nothing", ["perhaps", "ends-with"])
    assert explain_text(moved + "8.60\n" * 5 + ENDED).cause == "exited_first"
    script = "python: can't open file '/tmp/train.py': [Errno 2] No such file or directory\n"
    assert explain_text(moved + script).cause == "slurm_folder"


@pytest.mark.parametrize(
    "success",
    [
        "Successfully completed.\n\nResource usage summary:\n",
        "2026-01-02 03:04:05,123 sagemaker-training-toolkit INFO     Reporting training SUCCESS\n",
        "Job finished (status: SUCCEEDED).\n",
        "Job 'raysubmit_Q3' succeeded\n",
    ],
)
def test_what_a_scheduler_calls_a_success_had_no_cause(explain_text: Explain, success: str) -> None:
    assert explain_text("CUDA error: invalid argument\n" + success).kind == "nothing"
    assert explain_text(uncaught("KeyError: 'x'") + success).kind == "cause"


HELD_BACK = """
import logging, sys
for step in range(30):
    print(f"step {step} loss 0.5")
logging.addLevelName(logging.FATAL, "FATAL")
logging.fatal("engine: the shard map is gone")
sys.exit(1)
"""


def test_what_a_process_held_back_until_its_end_is_no_work_after_it(explain_text: Explain) -> None:
    python = [sys.executable, "-I", "-S", "-c", HELD_BACK]
    log = subprocess.run(
        python, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    ).stdout
    assert log.startswith("FATAL")
    for fatal in (log, log.replace("FATAL", "2026-01-02 03:04:05,123 FATAL", 1)):
        verdict = explain_text(fatal)
        assert verdict.first_error is not None
        assert verdict.first_error.line == 1


def test_a_mark_of_an_end_stays_the_cause_above_what_was_held_back(explain_text: Explain) -> None:
    fatal = "F0102 03:04:05.1 42 engine.cc:39] Check failed: table != nullptr\n"
    assert explain_text(fatal + progress(30)).cause == "native_assert"
    assert explain_text(fatal + clocked(20)).kind == "nothing"


@pytest.mark.parametrize(
    "line",
    [
        "[epilog] cleanup completed successfully\n",
        "rank 1: process 1 exited with code 0\n",
        "upload finished successfully\n",
    ],
)
def test_a_success_beside_the_work_clears_nothing(explain_text: Explain, line: str) -> None:
    assert explain_text("CUDA error: invalid argument\n" + line).kind == "cause"


@pytest.mark.parametrize(
    "line",
    [
        "[rank2]: ERROR: upload to the bucket failed, will retry\n",
        "[rank2]: [ERROR] shard 3 failed (attempt 1/5)\n",
        "[rank2]: ERROR: cannot reach the tracker, retrying in 5 s\n",
        "[rank2]: ERROR: cannot open /data/cache: using /tmp/cache instead\n",
        "[rank2]: ERROR: no fused kernel, falling back to eager\n",
        "[rank2]: ERROR: fetch of shard 7 failed, retry in 10 s\n",
        "[rank2]: ERROR: fetch of shard 7 failed; will try again later\n",
        "[rank2]: ERROR: fetch of shard 7 failed (3 retries left)\n",
        "[rank2]: ERROR: could not write the trace, continuing without it\n",
    ],
)
def test_what_is_tried_again_does_not_answer(explain_text: Explain, line: str) -> None:
    assert explain_text(line + WATCHDOG).cause == "nccl_watchdog"


@pytest.mark.parametrize(
    "line", ["[rank2]: ERROR: shard 3 failed (attempt 5/5)\n", "[rank2]: ERROR: not retrying: no shard 3\n"]
)
def test_what_is_not_tried_again_does(explain_text: Explain, line: str) -> None:
    verdict = explain_text(line + WATCHDOG)
    assert verdict.first_error is not None
    assert verdict.first_error.line == 1


@pytest.mark.parametrize(
    ("line", "cause", "rank"),
    [
        ("[rank3]: WARNING: read failed: [Errno 116] Stale file handle, retrying", "stale_nfs", 3),
        ("[88.1] nfs: server nas1 not responding, still trying", "stale_nfs", None),
        ("[rank3]: WARNING: reader: [Errno 5] Input/output error, trying again", "storage_io_error", 3),
        ("[rank3]: WARNING received a spot interruption notice", "preempted", 3),
    ],
)
def test_what_a_rank_called_mild_is_likely_why_others_waited_for_it(
    explain_text: Explain, line: str, cause: str, rank: int | None
) -> None:
    verdict = explain_text(f"{line}\n{WATCHDOG}")
    assert (verdict.kind, verdict.cause, verdict.where.rank) == ("suspect", cause, rank)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("WARNING preemption notice received, the instance ends in 30 s", "preempted"),
        ("WARN EC2 spot instance interruption notice: action=terminate", "preempted"),
        ("INFO watching for a preemption notice", "terminated"),
        ("INFO no preemption notice so far", "terminated"),
        ("INFO preemption signal handler enabled", "terminated"),
    ],
)
def test_a_notice_above_a_request_to_end_says_that_it_is_a_preemption(
    explain_text: Explain, line: str, cause: str
) -> None:
    assert explain_text(f"{line}\nReceived signal 15 (SIGTERM), shutting down\n").cause == cause


LUSTRE = """\
[88.1] LustreError: 11-0: fs-OST1: operation ost_read to node 10.0.0.9@tcp failed: rc = -19
[88.1] Lustre: fs-OST1: Connection to fs-OST1 was lost; in progress all will wait for recovery
"""


@pytest.mark.parametrize(
    ("lost", "back"),
    [
        ("[88.1] nfs: server nas1 not responding, still trying\n", "[99.1] nfs: server nas1 OK\n"),
        (LUSTRE, "[99.1] Lustre: fs-OST1: Connection restored to 10.0.0.7@tcp (at 10.0.0.7@tcp)\n"),
    ],
)
def test_a_server_of_files_that_came_back_is_no_cause(explain_text: Explain, lost: str, back: str) -> None:
    verdict = explain_text(lost)
    assert (verdict.kind, verdict.cause) == ("suspect", "stale_nfs")
    assert explain_text(lost + back).kind == "nothing"


@pytest.mark.parametrize(
    "line",
    [
        "[gn1:11] unable to open mca_ras_lsf: libbat.so: cannot open shared object file (ignored)",
        "[gn1:11] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
        "[gn1:11] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 2198",
        "[gn1:11] 3 more processes have sent help message help-mpi-btl-openib.txt / error in device init",
        '[gn1:11] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
        "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error",
        "gn1:7:9 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration",
        "algo-1:46:58 [0] configure:287 NCCL WARN NET/OFI Could not find ncclGetVersion symbol",
        "pi is approximately 3.1415926535898278, Error is 0.0000000000000346",
        "ExitCode 1",
        "1 2026-12-19 03:52:38 +0000 error: Corrected error, no action required., CPU 2, bank 17",
        "[812.1] EDAC MC1: 128 CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1",
        "No PCIe AER errors.",
        "failed       0    ",
        "gn1:rank4.train: Reading with process_vm_readv failed. Disabling CMA support",
        "gn1:435:783 [0] NCCL INFO include/net.h:19 -> 2",
        "sbatch: error: No account specified, defaulting to: lab",
        "other system errors; your job may hang, crash, or produce silent",
        "[14.8] workqueue: work hogged CPU for >10000us 8 times, consider switching to WQ_UNBOUND",
        "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)",
        "2026-01-02 03:04:05,341 ERROR gcs.py:142 -- Failed to send a request, reconnecting.",
        "Pod  Unhealthy  kubelet  Readiness probe failed: dial tcp 10.2.2.1:80: connect: connection refused",
    ],
)
def test_what_healthy_runs_print_is_no_error(explain_text: Explain, line: str) -> None:
    verdict = explain_text(f"{line}\nresult: 42\n")
    assert verdict.kind != "cause"
    assert verdict.first_error is None


ABORTED = "[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n"
NO_TRACKER = "ERROR: could not push metrics: 401\n"
EVICTED = (
    "[88.1] LustreError: 167-0: fs-OST1: This client was evicted by fs-OST1; in progress operations fail.\n"
    "[99.1] Lustre: fs-OST1: Connection restored to 10.0.0.7@tcp (at 10.0.0.7@tcp)\n"
)
NO_GPU = "cuda_driver.cc:7] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n"
PODS = (
    '5m  Warning  Failed   pod/train-1   Error: secret "token" not found\n'
    "5m  Normal   Started  pod/train-10  Started container train\n"
)


def logged(text: str) -> str:
    return json.dumps({"level": "INFO", "message": text.rstrip("\n")}) + "\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[agent] output: bash: line 1: syntax error near unexpected token `('\n" + ABORTED, "nccl_aborted"),
        ("/home/u/job.sh: line 4: syntax error near unexpected token `fi'\n" + ABORTED, "syntax_error"),
        (EVICTED, "stale_nfs"),
        (uncaught("KeyError: 'x'") + "checkpoint written at step 9\nexiting\n", "python_exception"),
        (f"2026-01-02 03:30:00 {FAULT}" + clocked(20), "illegal_memory_access"),
        (PODS, "pod_secret"),
        (PODS.replace("train-10", "train-1"), None),
        ("(raylet) Failed to connect to GCS at 10.0.0.1:6379, stopped retrying after 60s\n", "ray_start"),
        ("train.py: error: argument --fp16: ignored explicit argument 'true'\n", "wrong_arguments"),
        (logged(uncaught("FileNotFoundError: [Errno 2] No such file: 'a'")), "file_missing"),
        (
            "flash not usable: /env/rt.so: undefined symbol: cuTensorMapEncodeTiled\n" + ABORTED,
            "nccl_aborted",
        ),
        ("python: symbol lookup error: /env/rt.so: undefined symbol: cuInit\n" + ABORTED, "driver_symbol"),
        (uncaught("ImportError: /env/rt.so: undefined symbol: cuTensorMapEncodeTiled"), "driver_symbol"),
        (NO_GPU + "run.sh: line 8: 71 Killed   python train.py\n", "killed"),
        ("[data] worker 4 fetch failed with status code 404\n" + FAULT, "illegal_memory_access"),
    ],
)
def test_what_a_process_did_not_get_over_is_still_its_cause(
    explain_text: Explain, text: str, cause: str | None
) -> None:
    assert explain_text(text).cause == cause


@pytest.mark.parametrize(
    "said",
    [
        "[rank2]: train: tokenizer error: shard 7 has no tokens; nothing to fall back to\n",
        "[rank2]: ERROR: no samples left: 128 of 128 skipped\n",
        "[rank2]: cannot read the index: it may be of another version\n",
    ],
)
def test_a_refusal_is_an_error_whatever_follows_it(said: str) -> None:
    assert hints_at_error(parse(1, said.encode()))


def test_an_error_at_the_end_of_a_log_that_tells_of_no_end_is_not_the_reason(explain_text: Explain) -> None:
    verdict = explain_text(WATCHDOG, "the exporter starts\n" + NO_TRACKER)
    assert verdict.cause == "nccl_watchdog"


def test_a_line_of_uncorrected_errors_beside_corrected_ones_is_no_noise() -> None:
    assert catalogue().is_noise("EDAC: 3 corrected errors")
    assert not catalogue().is_noise("EDAC: 3 corrected errors, 1 uncorrectable error")


def test_a_standstill_that_a_check_of_the_training_told_is_why_the_time_ran_out(
    explain_text: Explain,
) -> None:
    told = "WARNING no progress in the last 900 s, waiting for ranks 4-7\n"
    limit = "slurmstepd: error: *** JOB 44 ON gn01 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
    verdict = explain_text(progress(5) + told + limit)
    assert (verdict.kind, verdict.cause) == ("cause", "stood_still")
    assert verdict.details == {"standstill": "900 s", "missing ranks": "4-7"}
    # One long before the end, or that passed, a warning alone, and what a kernel calls stuck, are none.
    assert explain_text(progress(5) + told + "served a request\n" * 99 + limit).cause == "time_limit"
    assert explain_text(progress(5) + told + progress(20) + limit).cause == "time_limit"
    assert explain_text(progress(5) + told + progress(20)).kind == "nothing"
    assert (
        explain_text("kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s!\n" + limit).cause
        != "stood_still"
    )
