"""A batch script prints at its beginning where it runs; that is the host of what names none."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain

KILLED = "/var/spool/slurmd/job71/slurm_script: line 9: 4102 Killed                  python fit.py\n"


@pytest.mark.parametrize(
    "line",
    [
        "Running on host gn-31",
        "Job 71 started on node gn-31 at 12:04",
        "SLURM_JOB_NODELIST: gn-31",
        "Hostname: gn-31",
        "kernel driver does not appear to be running on this host (gn-31): /proc/driver/nvidia/version",
        "Linux gn-31 5.15.0-91-generic #101-Ubuntu SMP x86_64 GNU/Linux",
    ],
)
def test_the_host_that_a_job_says_it_runs_on_is_its_failures(explain_text: Explain, line: str) -> None:
    assert str(explain_text(f"{line}\nepoch 1\n{KILLED}").where) == "host gn-31"


@pytest.mark.parametrize(
    "lines",
    [
        "Running on cuda:0",
        "Running on GPU",
        "Running on host localhost",
        "Running on 2 nodes",
        "SLURM_JOB_NODELIST: gn-[31-32]",
        "SLURM_JOB_NODELIST: gn-31,gn-32",
        "Running on host gn-31\nSLURM_NNODES=2",
        "Running on host gn-31\nRunning on host gn-32",
    ],
)
def test_devices_and_one_of_several_nodes_are_not_where_it_failed(explain_text: Explain, lines: str) -> None:
    assert str(explain_text(f"{lines}\nepoch 1\n{KILLED}").where) == ""


def test_what_names_its_own_host_keeps_it(explain_text: Explain) -> None:
    step = "srun: error: gn-32: task 9: Out Of Memory\n"
    assert str(explain_text(f"Running on host gn-31\nepoch 1\n{step}").where) == "host gn-32, task 9"


def test_a_rank_that_one_machine_does_not_have_ran_elsewhere(explain_text: Explain) -> None:
    raised = "[rank12]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert str(explain_text(f"Running on host gn-31\nepoch 1\n{raised}").where) == "rank 12"
