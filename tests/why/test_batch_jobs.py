"""What a batch job's script, its steps and its nodes said, and what only followed from it."""

from __future__ import annotations

from tests.why.conftest import Explain, uncaught


def test_a_task_that_srun_waited_for_is_told_before_the_cancellation_that_followed(
    explain_text: Explain,
) -> None:
    log = (
        "srun: First task exited 600s ago\n"
        "srun: StepId=81.3 tasks 0-4,6-7: running\n"
        "srun: StepId=81.3 task 5: exited abnormally\n"
        "slurmstepd-gn1: error: *** STEP 81.3 ON gn1 CANCELLED AT 2026-03-03T20:23:47 ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "srun: error: gn2: tasks 4,6-7: Killed\n"
    )
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.task) == ("exited_first", 5)
    ended = "srun: error: gn2: task 5: Exited with exit code 3\n"
    verdict = explain_text(ended + log)
    assert (verdict.where.host, verdict.where.task, verdict.details["exit code"]) == ("gn2", 5, "3")


def test_what_kills_the_others_is_no_cause_below_an_abort_of_mpi(explain_text: Explain) -> None:
    aborted = "Rank 7 [c1-0c0s1n2] application called MPI_Abort(MPI_COMM_WORLD, 2) - process 7\n"
    killed = "srun: error: nid07: tasks 0-3: Killed\n"
    verdict = explain_text(aborted + killed)
    assert (verdict.cause, verdict.where.rank) == ("mpi_abort", 7)
    assert explain_text(killed + aborted).cause == "killed"


def test_the_host_whose_daemon_tells_of_a_failed_node_need_not_be_it(explain_text: Explain) -> None:
    told = (
        "slurmstepd: error: *** STEP 7.0 ON gn17 CANCELLED AT 2026-03-06T03:17:51 DUE TO NODE FAILURE ***\n"
    )
    for log in ("srun: error: Node failure on gn37\n" + told, told + "srun: error: Node failure on gn37\n"):
        verdict = explain_text(log)
        assert (verdict.cause, verdict.where.host) == ("node_failed", "gn37")
        assert "the same" not in " ".join(verdict.notes)
    assert explain_text(told).cause == "node_of_job_failed"


def test_an_environment_that_was_not_activated_stands_behind_a_missing_package(explain_text: Explain) -> None:
    activate = "/var/spool/slurmd/job7/slurm_script: line 9: venv/bin/activate: No such file or directory\n"
    verdict = explain_text(activate + uncaught("ModuleNotFoundError: No module named 'torch'"))
    assert (verdict.kind, verdict.cause, verdict.details["name"]) == (
        "cause", "environment_missing", "venv/bin/activate",
    )  # fmt: skip
    assert explain_text(activate + uncaught("KeyError: 'lr'")).title == "KeyError: 'lr'"
    ended = "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-01-12T14:49:46 DUE TO TIME LIMIT ***\n"
    verdict = explain_text(activate + ended)
    assert verdict.cause == "time_limit"
    assert "environment" in " ".join(verdict.notes)
