"""A line that says a cause, and a later traceback that ended the job: which of the two is why."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught

OFI = "algo-1:46:58 [0] nccl_net_ofi_init:155 NCCL WARN NET/OFI Initializing plugin failed\n"
MPI = "ImportError: libmpi.so.40: cannot open shared object file\n"
WATCHDOG = (
    "[rank3]:[E0311 02:14:09.1 x.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=911, OpType=ALLREDUCE) ran for 600061 milliseconds before timing out.\n"
)


def steps(count: int) -> str:
    return "".join(f"step {number} loss 9.{number:02}\n" for number in range(count))


@pytest.mark.parametrize(
    ("claim", "raised", "cause"),
    [
        (
            "ImportError: libflash.so.2: cannot open shared object file\n",
            "KeyError: 'ids'",
            "KeyError: 'ids'",
        ),
        ("ModuleNotFoundError: No module named 'apex'\n", "MyError: no samples", "MyError: no samples"),
        (
            "ERROR:data:An error occurred (AccessDenied) when calling the GetObject operation; skipped\n",
            "ValueError: all sequences are empty",
            "ValueError: all sequences are empty",
        ),
        (
            "E0412 09:11:02.711 18 h.cc:88] Trying to connect an http1.x server\n",
            "IndexError: 4",
            "IndexError: 4",
        ),
        (
            "cn101.2112PSM2 can't open hfi unit: -1 (err=23)\n",
            "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/vocab.txt'",
            "file_missing",
        ),
        (OFI, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x2 and 4x5)", "shape_mismatch"),
        ("scontrol: fatal: Could not establish a configuration source\n", "KeyError: 'lr'", "KeyError: 'lr'"),
        ("Failed to open libnvidia-ml.so.1\n", "AssertionError: 24 heads", "AssertionError: 24 heads"),
        ("tensorboard: [Errno 28] No space left on device\n", "KeyError: 'labels'", "KeyError: 'labels'"),
        (
            "google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.\n",
            "ModuleNotFoundError: No module named 'seqio'",
            "missing_module",
        ),
        (OFI + steps(12), "MyError: the buffer is empty", "MyError: the buffer is empty"),
        (
            "slurm_script: line 9: 3311 Killed   python stats.py\n" + steps(12),
            "KeyError: 'm'",
            "KeyError: 'm'",
        ),
    ],
)
def test_a_traceback_with_a_cause_of_its_own_outranks_a_line_above_it(
    explain_text: Explain, claim: str, raised: str, cause: str
) -> None:
    verdict = explain_text(claim + uncaught(raised))
    assert cause in (verdict.cause, verdict.title)
    assert verdict.kind == "cause"


@pytest.mark.parametrize(
    ("claim", "raised", "cause"),
    [
        ("slurmstepd: error: *** STEP 8 CANCELLED DUE TO TIME LIMIT ***\n", "KeyError: 7", "time_limit"),
        ("srun: error: Node failure on gn22\n", "ValueError: 15 of 16", "node_failed"),
        (
            "srun: error: Task launch for StepId=7.0 failed on node gn09: Job credential expired\n",
            "ValueError: 15 of 16",
            "slurm_credential",
        ),
        (
            "ERROR:data: OSError: [Errno 116] Stale file handle\n",
            "FileNotFoundError: [Errno 2] No such file or directory: '/nfs/a.tar'",
            "stale_nfs",
        ),
        ("free(): invalid pointer\n", "KeyError: 'gn03'", "heap_corruption"),
        ("Failed to open libnvidia-ml.so.1\n", "RuntimeError: the device is odd", "nvml"),
        (
            "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling GetObject\n",
            "TypeError: 'NoneType' object is not subscriptable",
            "storage_credentials",
        ),
        (
            "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory\n",
            "NameError: name 'flash' is not defined",
            "library_missing",
        ),
        (
            "/tmp/main.c:5:10: fatal error: Python.h: No such file or directory\n",
            "RuntimeError: Error building extension 'cpu_adam'",
            "compiler_missing",
        ),
        (
            MPI + "srun: error: gn07: task 3: Exited with exit code 1\n",
            "ValueError: 3 of 4 tasks came",
            "library_missing",
        ),
        (
            "ERROR: cannot read: botocore.exceptions.ClientError: An error occurred (AccessDenied)\n",
            "FileNotFoundError: [Errno 2] No such file or directory: '/cache/a.tar'",
            "storage_credentials",
        ),
    ],
)  # fmt: skip
def test_a_line_that_ended_the_job_or_led_to_the_traceback_stays_the_cause(
    explain_text: Explain, claim: str, raised: str, cause: str
) -> None:
    prefix, raised = (
        raised.rsplit("]: ", 1)[0] + "]: " if "]: " in raised else "",
        raised.rsplit("]: ", 1)[-1],
    )
    assert explain_text(claim + uncaught(raised, prefix)).cause == cause


def test_a_line_above_a_consequence_stays_the_cause_unless_work_went_on(explain_text: Explain) -> None:
    assert explain_text(OFI + WATCHDOG).cause == "efa"
    assert explain_text(OFI + steps(3) + WATCHDOG).cause == "efa"
    verdict = explain_text(OFI + steps(12) + WATCHDOG)
    assert (verdict.kind, verdict.cause) == ("consequence", "nccl_watchdog")
    assert [one.id for one in verdict.noted] == ["also"]
    assert explain_text(OFI + steps(2000) + WATCHDOG).cause == "nccl_watchdog"


def test_a_fault_of_the_hardware_that_work_outlived_is_still_suspected(explain_text: Explain) -> None:
    down = "mlx5_core 0000:86:00.0 mlx5_4: Link DOWN\n"
    verdict = explain_text(down + steps(12) + WATCHDOG)
    assert (verdict.kind, verdict.cause) == ("suspect", "ib_port")


def test_what_one_rank_got_over_is_not_why_another_one_ended(explain_text: Explain) -> None:
    skipped = "[rank3]: ERROR:data:An error occurred (AccessDenied) when calling GetObject; skipped\n"
    verdict = explain_text(skipped + uncaught("KeyError: 'ids'", "[rank5]: "))
    assert (verdict.title, verdict.where.rank) == ("KeyError: 'ids'", 5)


def test_a_line_that_is_said_again_at_the_end_is_the_cause_again(explain_text: Explain) -> None:
    assert explain_text(OFI + steps(12) + OFI + WATCHDOG).cause == "efa"


def test_of_two_missing_packages_the_one_that_was_raised_is_named(explain_text: Explain) -> None:
    tried = "ModuleNotFoundError: No module named 'apex'\n"
    verdict = explain_text(tried + uncaught("ModuleNotFoundError: No module named 'yaml'"))
    assert verdict.exception is not None
    assert verdict.exception.message == "No module named 'yaml'"


def test_what_a_launcher_raises_is_no_cause_of_its_children_s_end(explain_text: Explain) -> None:
    launcher = uncaught("RuntimeError: The server socket has failed to listen: Address already in use")
    launcher = launcher.replace("torch/nn/module.py", "torch/distributed/elastic/agent/server/api.py")
    script = "/env/bin/python: can't open file 'pretrain.py': [Errno 2] No such file or directory\n"
    assert explain_text(script * 2 + launcher).cause == "script_missing"


def test_a_line_that_gave_way_is_noted_beside_the_answer(explain_text: Explain) -> None:
    verdict = explain_text("Failed to open libnvidia-ml.so.1\n" + uncaught("KeyError: 'lr'"))
    assert [one.id for one in verdict.noted] == ["also"]
    assert "(log0:1)" in verdict.notes[0]
