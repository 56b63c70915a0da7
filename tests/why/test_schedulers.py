"""How Slurm and LSF tell that they refused or ended a job, and what that leaves open."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress, uncaught

LSF = """Sender: LSF System <lsf@gpu-7>
Subject: Job 4711: <tune> in cluster <c> Exited

Job <tune> was submitted from host <login-1> by user <user> in cluster <c> at Tue Mar  3 09:00:00 2026
Job was executed on host(s) <{}>, in queue <gpu>, as user <user> in cluster <c> at Tue Mar  3 09:00:09 2026
{}Your job looked like:

------------------------------------------------------------
#!/bin/sh
#BSUB -q gpu
python3 train.py
------------------------------------------------------------

{}
Exited with exit code {}.
"""
OWNER = "TERM_OWNER: job killed by owner."
ENDED = "slurmstepd: error: *** STEP 81.0 ON gn04 CANCELLED AT 2026-03-03T09:10:11 DUE TO TASK FAILURE ***\n"


@pytest.mark.parametrize(
    ("said", "place"),
    [
        (
            "mpirun.real noticed that process rank 3 with PID 71 on node pod-1 exited on signal 9 (Killed).",
            "pod-1",
        ),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_ra[INFO] x", None),
        ("[2026-03-03T09:10:11.2] _job_complete: JobId=81 WTERMSIG 9", None),
    ],
)
def test_a_launcher_of_another_name_and_a_torn_line_tell_of_a_kill(
    explain_text: Explain, said: str, place: str | None
) -> None:
    verdict = explain_text(f"{said}\n")
    assert (verdict.cause, verdict.where.host) == ("killed", place)


@pytest.mark.parametrize(
    ("code", "cause"), [("9", "killed"), ("11", "segfault"), ("139", "segfault"), ("256", "exited_first")]
)
def test_an_older_mpiexec_writes_what_wait_returned(explain_text: Explain, code: str, cause: str) -> None:
    verdict = explain_text(
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n\n"
        f"=   EXIT CODE: {code}\n\n=   CLEANING UP REMAINING PROCESSES\n\n"
        "[proxy:0:1@gn12] HYD_pmcd_pmip_control_cmd_cb (./pm/pmip_cb.c:880): assert (!closed) failed\n"
        "[proxy:0:1@gn12] HYDT_dmxu_poll_wait_for_event (./demux.c:76): callback returned error status\n"
    )
    assert verdict.cause == cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("qsub: Job rejected by all possible destinations", "slurm_refused"),
        ("qsub: Error: You are not a member of project ab12. Ask its lead to add you.", "slurm_refused"),
        ("   Exit Status:        -17 (Job execution failed due to hook rejection; delete it)", "pbs_hook"),
        ("pbs_mom: execjob_launch request rejected by 'gpu_health'", "pbs_hook"),
    ],
)
def test_what_pbs_refuses_is_told(explain_text: Explain, said: str, cause: str) -> None:
    assert explain_text(f"{said}\n").cause == cause


def test_two_programs_with_one_port_of_pmi_are_no_taken_master_port(explain_text: Explain) -> None:
    verdict = explain_text(
        "Mon Nov 23 20:13:26 2026: [PE_3]:inet_listen_socket_setup:inet_setup_listen_socket: "
        "bind failed port 61033 listen_sock = 4 Address already in use\n"
        "Mon Nov 23 20:13:26 2026: [PE_3]:_pmi_inet_listen_socket_setup:socket setup failed\n"
    )
    assert (verdict.cause, verdict.where.rank, verdict.details["port"]) == ("mpi_pmi_port", 3, "61033")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("severe (174): SIGSEGV, segmentation fault occurred", "fortran_segfault"),
        ("severe (168): Program Exception - illegal instruction", "illegal_instruction"),
    ],
)
def test_crash_of_a_fortran_program_is_told_at_the_task_that_ended(
    explain_text: Explain, said: str, cause: str
) -> None:
    verdict = explain_text(
        f"forrtl: {said}\n"
        "Image              PC                Routine            Line        Source\n"
        "ocean.exe          000000000072DF5B  for__signal_handl     Unknown  Unknown\n"
        "libpthread-2.17.s  00002B27FE7BB630  Unknown               Unknown  Unknown\n"
        "srun: error: cn07: task 3: Exited with exit code 174\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.where.task) == (cause, "cn07", 3)


@pytest.mark.parametrize(
    ("above", "cause", "host"),
    [
        ("", "mpi_input", "gn12"),
        ("ModuleNotFoundError: No module named 'fields'\n", "missing_module", None),
        (
            "=   BAD TERMINATION\n=   RANK 0 PID 41 RUNNING AT gn14\n=   KILLED BY SIGNAL: 9 (Killed)\n",
            "killed",
            "gn14",
        ),
    ],
)
def test_input_that_mpiexec_could_not_pass_on_is_no_failed_start(
    explain_text: Explain, above: str, cause: str, host: str | None
) -> None:
    verdict = explain_text(
        f"{above}[proxy:0:0@gn12] HYDU_sock_write (utils/sock.c:254): write error (Broken pipe)\n"
        "[proxy:0:0@gn12] HYD_pmcd_pmip_control_cmd_cb (./cb.c:870): unable to write to downstream stdin\n"
        "[proxy:0:0@gn12] main (./pmip.c:190): demux engine error waiting for event\n"
        "[mpiexec@gn12] HYD_pmci_wait_for_completion (./pmci.c:200): error waiting for event\n"
    )
    assert (verdict.cause, verdict.where.host) == (cause, host)


@pytest.mark.parametrize(
    ("code", "below", "signal"),
    [
        (9, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", "killed"),
        (9, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)", "segfault"),
        (134, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)", "abort"),
        (6, "   Intel(R) MPI Library troubleshooting guide:", "exited_first"),
        (9, "mpiexec is done", "exited_first"),
        (139, "mpiexec is done", "segfault"),
        # Cut off above the line that names the signal.
        (6, "", "abort"),
        (9, "", "killed"),
        (139, "", "segfault"),
        (24, "", "exited_first"),
    ],
)
def test_what_a_later_mpiexec_calls_an_exit_code_is_a_signal_where_it_names_one_or_the_log_ends(
    explain_text: Explain, code: int, below: str, signal: str
) -> None:
    verdict = explain_text(
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4102 RUNNING AT gn17\n"
        f"=   EXIT CODE: {code}\n=   CLEANING UP REMAINING PROCESSES\n{'=' * 40}\n{below}\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.notes) == (signal, "gn17", ())


@pytest.mark.parametrize(
    ("said", "cause", "retry"),
    [
        ("Unable to contact slurm controller (connect failure)", "slurm_controller", None),
        ("Socket timed out on send/recv operation", "slurm_controller", None),
        ("Zero Bytes were transmitted or received", "slurm_controller", None),
        ("I/O error writing script/environment to file", "slurm_state", None),
        ("Invalid account or account/partition combination specified", "slurm_refused", "no"),
    ],
)
def test_only_a_refusal_of_the_request_is_called_one(
    explain_text: Explain, said: str, cause: str, retry: str
) -> None:
    verdict = explain_text(f"sbatch: error: Batch job submission failed: {said}\n")
    assert (verdict.kind, verdict.cause, verdict.retry) == ("cause", cause, retry)


def test_the_only_task_that_was_not_ended_with_its_step_is_likely_the_one_that_failed(
    explain_text: Explain,
) -> None:
    verdict = explain_text(ENDED + "srun: error: gn04: tasks 0-4,6-7: Terminated\n")
    assert (verdict.kind, verdict.cause, verdict.retry) == ("consequence", "step_task_failed", None)
    assert (verdict.where.host, verdict.where.task) == ("gn04", 5)
    assert [one.values["task"] for one in verdict.noted if one.id == "task-left-out"] == [5]


@pytest.mark.parametrize("tasks", ["0-7", "0-1,4-7", "0-4,6-7: Terminated\nsrun: error: gn05: tasks 6-9"])
def test_no_task_is_guessed_where_not_exactly_one_is_left_out(explain_text: Explain, tasks: str) -> None:
    verdict = explain_text(ENDED + f"srun: error: gn04: tasks {tasks}: Terminated\n")
    assert (verdict.cause, verdict.where.task) == ("step_task_failed", None)
    assert "task-left-out" not in {one.id for one in verdict.noted}


def test_task_that_failed_on_another_node_than_slurm_names_is_found_there(explain_text: Explain) -> None:
    ended = "srun: error: gn04: tasks 0-3: Terminated\nsrun: error: gn05: tasks 4-5,7: Terminated\n"
    verdict = explain_text(ENDED + ended)
    assert (verdict.where.host, verdict.where.task) == ("gn05", 6)


def test_srun_that_only_follows_a_failed_task_is_no_wish_of_anybody(explain_text: Explain) -> None:
    waits = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    verdict = explain_text(waits + ENDED + "srun: error: gn04: task 3: Exited with exit code 9\n")
    assert (verdict.cause, verdict.where.task, verdict.retry) == ("exited_first", 3, None)


def test_a_task_that_ended_first_answers_though_its_partners_lost_it_above(explain_text: Explain) -> None:
    said = (
        "[cn5:20417] [[9120,0],1] tcp_peer_send_blocking: send() to socket 11 failed: Broken pipe (32)\n"
        "srun: error: cn5: task 0: Exited with exit code 1\n"
        "srun: Terminating job step 4217.1\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "srun: error: cn6: task 1: Exited with exit code 1\n"
    )
    assert explain_text(said).cause == "exited_first"


def test_job_that_lsf_ended_on_request_says_where_and_at_whose(explain_text: Explain) -> None:
    verdict = explain_text(LSF.format("4*gpu-7", "", OWNER, 143))
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("consequence", "lsf_killed", "gpu-7")
    assert verdict.details == {"by": "owner"}


def test_limit_of_lsf_is_told_with_its_host_whatever_the_jobs_output_said(explain_text: Explain) -> None:
    limit = "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."
    verdict = explain_text(LSF.format("gpu-7", "", limit, 137))
    assert (verdict.cause, verdict.where.host) == ("lsf_memory_limit", "gpu-7")


@pytest.mark.parametrize(
    "log",
    [
        LSF.format("4*gpu-7", "                            <4*gpu-8>\n", OWNER, 143),
        f"{OWNER}\nExited with exit code 143.\n",
    ],
    ids=["several hosts", "no head"],
)
def test_no_host_is_chosen_among_several(explain_text: Explain, log: str) -> None:
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.host) == ("lsf_killed", None)


def test_job_whose_output_lsf_appended_to_that_of_others_is_the_one_that_is_explained(
    explain_text: Explain,
) -> None:
    crash, limit = uncaught("KeyError: 'lr'"), "TERM_RUNLIMIT: job killed after reaching LSF run time limit."
    jobs = crash + LSF.format("gpu-7", "", "", 1) + crash + LSF.format("gpu-7", "", OWNER, 143)
    verdict = explain_text(jobs + LSF.format("gpu-8", "", limit, 140))
    assert (verdict.cause, verdict.where.host) == ("time_limit", "gpu-8")
    assert not verdict.noted
    verdict = explain_text(jobs + uncaught("IndexError: 9") + LSF.format("gpu-8", "", "", 1))
    assert (verdict.title, verdict.where.host) == ("IndexError: 9", "gpu-8")


def test_what_lsf_quotes_of_the_jobs_script_is_not_its_last_word(explain_text: Explain) -> None:
    verdict = explain_text(LSF.format("gpu-7", "", "", 120))
    assert (verdict.kind, verdict.where.host) == ("unknown", "gpu-7")
    assert "last-words" not in {one.id for one in verdict.noted}


@pytest.mark.parametrize(
    ("log", "kind", "cause"),
    [
        ("srun: fatal: Can not execute v\nrun.sh: line 8: 7 Aborted  srun v\n", "cause", "launch_program"),
        ("job.sh: line 41: syntax error near unexpected token `fi'\n", "cause", "syntax_error"),
        ("job.sh: line 3: unexpected EOF while looking for matching `\"'\n", "cause", "syntax_error"),
        ("job.sh: line 9: cd: /scratch/u/run: No such file or directory\n", "suspect", "file_missing"),
        ("job.sh: line 9: /o/v/bin/activate: No such file or directory\n", "suspect", "environment_missing"),
        ("CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n",
         "cause", "conda_not_initialised"),
        ("job.sh: line 9: --nproc_per_node=4: command not found\n", "suspect", "line_continuation"),
        ("job.sh: line 9: torchrun: command not found\n", "suspect", "command_missing"),
        ("job.sh: line 9: 4711 Bus error               (core dumped) Rscript fit.R\n", "cause", "bus_error"),
        ("job.sh: line 9:  81 Floating point exception(core dumped) ./fit\n", "cause", "arithmetic_fault"),
        ("=>> PBS: job killed: ncpus 21.4 exceeded limit 8 (sum)\n", "cause", "cpus_exceeded"),
    ],
)  # fmt: skip
def test_what_the_jobs_script_or_its_scheduler_said_is_no_silence(
    explain_text: Explain, log: str, kind: str, cause: str | None
) -> None:
    verdict = explain_text(log)
    assert (verdict.kind, verdict.cause) == (kind, cause)


def test_the_task_that_srun_names_between_the_lines_of_an_mpi_error_is_its_own(explain_text: Explain) -> None:
    log = (
        "MPICH ERROR [Rank 3] [job id 7.0] [Tue Mar  3 09:00:00 2026] [gn05] - Abort(1) (rank 3 in comm 0): "
        "Fatal error in PMPI_Wait: Other MPI error, error stack:\n"
        "PMPI_Wait(201)....: MPI_Wait failed\n"
        "srun: error: gn04: task 2: Segmentation fault\n"
        "srun: error: gn05: task 3: Exited with exit code 255\n"
    )
    verdict = explain_text(log)
    assert (verdict.cause, verdict.where.host, verdict.where.task) == ("segfault", "gn04", 2)


def test_what_htcondor_holds_a_job_for_is_told_with_its_host(explain_text: Explain) -> None:
    held = "Error from slot1_4@gpu-7.site: Job has gone over cgroup memory limit of 2048 megabytes."
    verdict = explain_text(f"012 (4711.000.000) 2026-03-03 09:00:00 Job was held.\n\t{held}\n")
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("cause", "out_of_memory_kill", "gpu-7.site")


def test_a_node_that_ssh_loses_while_it_runs_is_not_one_that_never_started(explain_text: Explain) -> None:
    lost = "Connection to gpu-7 closed by remote host.\n"
    verdict = explain_text(lost + "ORTE was unable to reliably start one or more daemons.\n")
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("consequence", "mpi_daemon_lost", "gpu-7")


CANCELLED = "slurmstepd-gn04: error: *** STEP 81.0 ON gn04 CANCELLED AT 2026-03-03T09:10:11 ***\n"


def test_what_a_process_raises_when_its_step_was_cancelled_is_no_cause(explain_text: Explain) -> None:
    left = uncaught("async_loop.TimeoutError: gave up after None seconds")
    ended = "srun: error: gn04: task 0: Exited with exit code 1\n"
    verdict = explain_text(CANCELLED + left + ended)
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("consequence", "job_cancelled", "gn04")
    assert "async_loop.TimeoutError: gave up" in str(verdict)


@pytest.mark.parametrize(
    "log",
    [
        "srun: error: gn04: task 1: Exited with exit code 1\n"
        + CANCELLED
        + uncaught("RuntimeError: odd batch"),
        uncaught("RuntimeError: odd batch") + CANCELLED,
        CANCELLED + uncaught("KeyError: 'mean'"),
        "srun: Job step aborted: Waiting up to 32 seconds\n" + uncaught("RuntimeError: odd batch"),
    ],
)
def test_what_was_raised_before_a_step_was_cancelled_or_by_the_code_stays_the_cause(
    explain_text: Explain, log: str
) -> None:
    assert explain_text(log).cause == "python_exception"


@pytest.mark.parametrize(
    ("line", "is_spool"),
    [
        ("slurmstepd: error: execve(): /var/spool/slurm/d/tools/run.sh: {}", True),
        ("/s/slurm/var/spool/job7/slurm_script: line 3: /s/slurm/var/spool/job7/env.sh: {}", True),
        ("python: can't open file '/var/spool/slurmd/job9/train.py': [Errno 2] {}", True),
        ("/var/spool/slurmd/job9/slurm_script: line 3: /opt/env.sh: {}", False),
        ("slurmstepd: error: execve(): /data/spool/run.sh: {}", False),
        ("slurmstepd: error: execve(): /var/spool/slurmd/job9/slurm_script: {}", False),
    ],
)
def test_a_file_beside_the_copy_of_a_batch_script_is_sought_in_the_wrong_folder(
    explain_text: Explain, line: str, is_spool: bool
) -> None:
    verdict = explain_text(f"{line.format('No such file or directory')}\n")
    assert (verdict.cause == "slurm_spool") == is_spool


def test_cgroup_for_which_the_kernel_has_no_space_is_no_full_disk(explain_text: Explain) -> None:
    added = (
        "slurmstepd: error: common_file_write_uints: write value '9' to "
        "'/sys/fs/cgroup/cpuset/slurm/uid_7/job_8/step_batch/cgroup.procs' failed: No space left on device\n"
        "slurmstepd: error: job_manager: exiting abnormally: Slurmd could not execve job\n"
    )
    made = "slurmstepd: error: xcgroup_instantiate: unable to create cgroup '{}' : No space left on device\n"
    assert explain_text(added).cause == "slurm_cgroup"
    assert explain_text(made.format("/sys/fs/cgroup/memory/slurm/uid_7")).cause == "slurm_cgroup"


def test_node_with_its_domain_and_without_is_one(explain_text: Explain) -> None:
    silent = "srun: error: slurm_receive_msgs: [[gn4.cluster]:6818] failed: Socket timed out on send/recv"
    launch = "srun: error: Task launch for StepId=7.0 failed on node"
    verdict = explain_text(
        f"{silent} operation\n" + "".join(f"{launch} gn{n}: No such process\n" for n in (4, 5))
    )
    assert (verdict.where.host, verdict.notes) == ("gn4.cluster", ("the same on host gn5",))


def test_number_of_slots_that_became_part_of_a_hosts_name_is_told(explain_text: Explain) -> None:
    unknown = "ssh: Could not resolve hostname {}: Name or service not known\n"
    assert explain_text(unknown.format("gpu-1:4")).cause == "ssh_host_slots"
    assert explain_text(unknown.format("gpu-1")).cause == "ssh_name_unknown"


def test_list_of_hosts_that_is_not_in_the_container_is_named(explain_text: Explain) -> None:
    verdict = explain_text(
        "[mpiexec@gn4] HYDU_parse_hostfile (utils/args/args.c:319): unable to open host file: /spool/aux/7\n"
        "[mpiexec@gn4] HYDT_bsci_query_node_list (tools/bsci.c:19): RMK returned error while querying nodes\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.details["path"]) == (
        "mpi_hostfile", "gn4", "/spool/aux/7",
    )  # fmt: skip


def test_munge_that_does_not_run_is_told_from_a_credential_that_is_refused(explain_text: Explain) -> None:
    encode = (
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or '
        "directory\nsbatch: error: Batch job submission failed: Protocol authentication error\n"
    )
    assert explain_text(encode).cause == "munge_down"
    decode = "Mar 24 07:06:46 ctl slurmctld[159]: error: Munge decode failed: Invalid credential\n"
    assert explain_text(decode).cause == "slurm_credential"


def test_hosts_between_which_open_mpi_has_no_network_are_named(explain_text: Explain) -> None:
    verdict = explain_text(
        "At least one pair of MPI processes are unable to reach each other for\nMPI communications.\n\n"
        "Process 1 ([[3,1],8]) is on host: gn-7\nProcess 2 ([[3,1],0]) is on host: gn-1\n"
        "BTLs attempted: self vader\n"
    )
    assert (verdict.cause, verdict.where.host) == ("mpi_no_transport", "gn-7")
    assert (verdict.details["peer"], verdict.details["tried"]) == ("gn-1", "self vader")


def test_host_of_the_job_that_slurm_requeues_below_a_refused_credential_refused_it(
    explain_text: Explain,
) -> None:
    refused = "slurmstepd: error: Munge decode failed: Expired credential\n"
    verifying = "slurmstepd: error: Verifying authentication credential: Expired credential\n"
    requeued = (
        "slurmstepd: error: *** JOB 71 ON gn21 CANCELLED AT 2031-02-03T04:05:06 DUE TO JOB REQUEUE ***\n"
    )
    verdict = explain_text(refused + verifying + requeued)
    assert (verdict.cause, verdict.where.host) == ("slurm_credential", "gn21")
    other = "srun: error: Task launch for StepId=71.0 failed on node gn30: Job credential expired\n"
    for text in (other, other + requeued, other + requeued.replace("JOB REQUEUE", "PREEMPTION")):
        assert explain_text(text).where.host == "gn30"
    step = "slurmstepd: error: *** STEP 71.0 ON gn21 CANCELLED AT 2031-02-03T04:05:06 ***\n"
    assert explain_text(refused + verifying + step).where.host is None
    assert explain_text(refused + progress(30) + requeued).cause == "preempted"


def test_rank_that_jsrun_noticed_first_is_the_one_that_failed(explain_text: Explain) -> None:
    verdict = explain_text("ERROR:  One or more process (first noticed rank 5) terminated with signal 9\n")
    assert (verdict.cause, str(verdict.where)) == ("killed", "rank 5")


def test_process_that_horovodrun_ended_is_not_the_one_that_failed(explain_text: Explain) -> None:
    verdict = explain_text(
        "Process 1 exit with status code 1.\n"
        "Terminating remaining workers after failure of Process 1.\n"
        "Process 0 exit with status code 143.\n"
    )
    assert (verdict.kind, str(verdict.where)) == ("unknown", "rank 1")
    assert "rank 1 ended with exit code 1" in verdict.notes
