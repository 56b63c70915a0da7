"""What a batch job's script, its steps and its nodes said, and what only followed from it."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught

STACK = "".join(f"/opt/lib/libmpi_gnu.so.12(+0x1b{n}4b4) [0x7f44807{n}]\n" for n in range(8))


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


def test_cpus_that_a_step_does_not_have_are_no_fault_of_the_node(explain_text: Explain) -> None:
    verdict = explain_text(
        "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x0F00.\n"
        "srun: error: Task launch for StepId=93.0 failed on node gn09: Unable to satisfy cpu bind request\n"
        "srun: error: Application launch failed: Unable to satisfy cpu bind request\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.retry) == ("slurm_cpu_bind", "gn09", "no")


def test_a_function_of_srun_is_no_host(explain_text: Explain) -> None:
    silent = (
        "srun: error: eio_message_socket_accept: slurm_receive_msg[10.1.2.11:49092]: "
        "Zero Bytes were transmitted or received\n"
    )
    verdict = explain_text(silent + "srun: error: Node failure on gn11\n")
    assert (verdict.cause, verdict.where.host) == ("node_failed", "gn11")
    assert explain_text(silent).cause != "node_failed"


@pytest.mark.parametrize("codes", ["SIGKILL(-9)", "SIGSEGV(-11)"])
def test_what_a_pool_supposes_of_its_worker_is_no_crash(explain_text: Explain, codes: str) -> None:
    died = (
        "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process was unexpectedly "
        "terminated. This could be caused by a segmentation fault while calling the function.\n"
        f"\nThe exit codes of the workers are {{{codes}}}\n"
    )
    verdict = explain_text(died)
    assert (verdict.cause, verdict.details["reason"]) == ("pool_worker_died", codes)
    killed = "slurmstepd: error: Detected 3 oom_kill events in StepId=7.batch. Some of the tasks.\n"
    assert explain_text(died + killed).cause == "out_of_memory_kill"


def test_the_host_of_an_abort_is_that_of_what_was_thrown(explain_text: Explain) -> None:
    verdict = explain_text(
        "terminate called after throwing an instance of 'std::bad_alloc'\n"
        "  what():  std::bad_alloc\n"
        "[gn05:9049] *** Process received signal ***\n"
        "[gn05:9049] Signal: Aborted (6)\n"
    )
    assert (verdict.cause, verdict.where.host) == ("host_memory", "gn05")


@pytest.mark.parametrize(
    ("line", "cause", "path"),
    [
        ("hook function for tag layer: failed to create /t/j7 directory: mkdir /t/j7: permission denied",
         "container_folder", "/t/j7"),
        ("failed to resolve session directory /s/a/mnt/session: lstat /s/a: no such file or directory",
         "container_folder", "/s/a"),
        ("error: while mounting /opt/c: destination /opt/c doesn't exist in container",
         "container_mount", "/opt/c"),
    ],
)  # fmt: skip
def test_folders_that_a_container_lacks(explain_text: Explain, line: str, cause: str, path: str) -> None:
    verdict = explain_text(f"FATAL:   container creation failed: {line}\n")
    assert (verdict.cause, verdict.details["path"]) == (cause, path)


def test_a_script_that_julia_does_not_find_is_named_with_its_task(explain_text: Explain) -> None:
    verdict = explain_text(
        'ERROR: LoadError: SystemError: opening file "/s/fit.jl": No such file or directory\n'
        "Stacktrace:\n"
        "srun: error: gn3: task 0: Exited with exit code 1\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("cause", "file_missing", "gn3")


def test_a_training_without_batches_is_told(explain_text: Explain) -> None:
    assert explain_text("`Trainer.fit` stopped: No training batches.\n").cause == "data_empty"
    assert explain_text("`Trainer.fit` stopped: `max_epochs=3` reached.\n").cause is None


def test_kills_below_a_timed_out_collective_are_no_cause_and_who_started_less_is_behind(
    explain_text: Explain,
) -> None:
    waited = "".join(
        f"[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=67, OpType=ALLREDUCE)\n"
        for rank in range(4, 8)
    )
    dumped = "".join(
        f"[rank{rank}]: Received a dump signal due to a collective timeout from rank 5 ... "
        "Last enqueued NCCL work: 66, last completed NCCL work: 66.\n"
        for rank in (1, 2)
    )
    ended = "srun: error: gn2: tasks 4-7: Aborted (core dumped)\nsrun: error: gn1: tasks 0-3: Killed\n"
    verdict = explain_text(waited + dumped + ended)
    assert (verdict.cause, verdict.where.rank) == ("nccl_watchdog", 1)
    assert explain_text("srun: error: gn1: task 3: Killed\n" + waited).cause == "killed"


def test_the_word_of_a_site_above_slurm_s_refusal_is_told(explain_text: Explain) -> None:
    verdict = explain_text(
        "srun: error: Ask for at least 1 GPU in partition 'a100'\n"
        "srun: error: Unable to allocate resources: Invalid generic resource (gres) specification\n"
    )
    assert verdict.cause == "slurm_refused"
    assert "at least 1 GPU" in " ".join(verdict.notes)


def test_the_refusal_that_ended_a_download_is_told_and_not_the_redirection_before(
    explain_text: Explain,
) -> None:
    opened = "/usr/lib/python3.8/urllib/request.py"
    verdict = explain_text(
        uncaught("urllib.error.HTTPError: HTTP Error 302: Found", file=opened)
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + uncaught("urllib.error.HTTPError: HTTP Error 403: Forbidden", file=opened)
    )
    assert (verdict.cause, verdict.details["status"]) == ("download_refused", "403")


def test_what_a_crash_comes_of_stands_above_it(explain_text: Explain) -> None:
    crashed = "gn4: rank 0 died from signal 11 and dumped core\n"
    lines = {
        "too_many_threads": "libgomp: Thread creation failed: Resource temporarily unavailable\n",
        "oneccl_transport": "|CCL_ERROR| atl_mpi_comm.cpp:94 init_transport: comm_create error\n",
        "mpi_abort": "application called MPI_Abort(MPI_COMM_WORLD, 7) - process 0\n",
    }
    assert {explain_text(line + crashed).cause for line in lines.values()} == set(lines)
    handled = "Segmentation fault (core dumped)\nclosing files\n" + lines["mpi_abort"]
    assert explain_text(handled).cause == "segfault"


def test_a_node_whose_launcher_was_killed_is_told_from_the_ranks_that_were_torn_down(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "x1002c3s1b0n0: rank 61 died from signal 15\nx1001c0s4b0n0: shepherd died from signal 9\n"
    )
    assert (verdict.cause, verdict.where.host) == ("launcher_killed_on_node", "x1001c0s4b0n0")


@pytest.mark.parametrize(
    ("signal", "cause"),
    [("Killed", "worker_exited"), ("Aborted", "worker_crashed"), ("Segmentation fault", "worker_crashed")],
)
def test_workers_that_the_kernel_ended_are_told_from_those_that_crashed(
    explain_text: Explain, signal: str, cause: str
) -> None:
    raised = f"RuntimeError: DataLoader worker (pid 77) is killed by signal: {signal}. "
    assert explain_text(raised + "\n").cause == cause


def test_a_working_folder_that_a_node_lacks_stands_behind_a_missing_script(explain_text: Explain) -> None:
    moved = (
        "slurmstepd: error: couldn't chdir to `/w/run': No such file or directory: going to /tmp instead\n"
    )
    missing = "python: can't open file '/tmp/fit.py': [Errno 2] No such file or directory\n"
    verdict = explain_text(moved + missing)
    assert verdict.cause == "slurm_in_tmp"
    assert "the script does not exist" in " ".join(verdict.notes)
    assert not explain_text(moved + "ModuleNotFoundError: No module named 'einops'\n").notes


def test_a_script_in_the_tmp_of_another_node_is_missing_on_this_one(explain_text: Explain) -> None:
    verdict = explain_text(
        "bash: /tmp/start.sh: No such file or directory\n"
        "srun: error: gn9: task 0: Exited with exit code 127\n"
    )
    assert (verdict.cause, verdict.where.host) == ("command_missing", "gn9")


def test_what_announces_a_traceback_is_no_error_of_its_own(explain_text: Explain) -> None:
    caught = (
        "Run a1 errored:\nTraceback (most recent call last):\n"
        '  File "/w/wandb/agent.py", line 3, in _run_job\n    self._function()\n'
        "RuntimeError: No visible GPU devices\n"
    )
    printed = "".join(f"wandb: ERROR {line}\n" for line in caught.splitlines())
    verdict = explain_text(f"{caught}\n{printed}" + "wandb: Agent Starting Run: b2\n" * 9)
    assert (verdict.kind, verdict.cause) == ("suspect", "jax_no_device")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("while mounting image /proc/self/fd/3: failed to find loop device: no loop devices available",
         "container_loop"),
        ("image driver mount failure: squashfuse_ll exited: cannot read the image", "container_loop"),
        ("while applying cgroups config: open /sys/fs/cgroup/a.scope/cpu.max: no such file or directory",
         "container_cgroup"),
    ],
)  # fmt: skip
def test_what_a_node_lacks_to_start_a_container(explain_text: Explain, reason: str, cause: str) -> None:
    assert explain_text(f"FATAL:   container creation failed: {reason}\n").cause == cause
    assert explain_text("INFO:    squashfuse not found, will not be able to mount SIF\n").cause is None


def test_a_launcher_of_another_name_tells_who_crashed(explain_text: Explain) -> None:
    verdict = explain_text(
        "shmemrun noticed that process rank 3 with PID 0 on node gn8 exited on signal 11 (Segmentation "
        "fault).\n"
    )
    assert (verdict.cause, verdict.where.host, verdict.where.rank) == ("segfault", "gn8", 3)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("Invalid job id specified", "slurm_job_over"),
        ("Socket timed out on send/recv operation", "slurm_controller"),
        ("Unexpected message received", "slurm_controller"),
    ],
)
def test_an_allocation_that_is_over_is_told_from_a_controller_that_does_not_answer(
    explain_text: Explain, reason: str, cause: str
) -> None:
    assert explain_text(f"srun: error: Unable to confirm allocation for job 47: {reason}\n").cause == cause


@pytest.mark.parametrize(
    "line",
    [
        "qsub: Unauthorized Request  MSG=user ACL rejected the submitting user: user ana@hpc, queue gpu",
        "qsub: Unknown queue",
    ],
)
def test_refusals_of_pbs(explain_text: Explain, line: str) -> None:
    assert explain_text(line + "\n").cause == "slurm_refused"
    assert explain_text("qsub: waiting for job 12.pbs to start\nqsub: job 12.pbs ready\n").cause is None


def test_a_signal_in_the_exit_code_of_the_launcher_around_another(explain_text: Explain) -> None:
    ended = "10.0.0.2: [ERROR] [launch.py:184:sigkill_handler] ['python3', 't.py'] exits with return code = "
    causes = [explain_text(f"{ended}{code}\n").cause for code in (247, 245, 255)]
    assert causes[:2] == ["killed", "segfault"]
    assert causes[2] not in ("killed", "segfault")


@pytest.mark.parametrize(
    ("cause", "lines"),
    [
        (
            "native_assert",
            "Assertion failed in file ../src/mpi/init/init.c at line 88: locks.count >= 0\n" + STACK,
        ),
        (
            "ib_completion",
            "mlx5: nid004400: got completion with error:\n00000000 00000000 00000000 00000000\n",
        ),
        (
            "locked_memory",
            (
                "[1613.44] [nid004400:118:0] ib_md.c:325 UCX ERROR ibv_reg_mr(address=0xabcf, length=4096, "
                "access=0xf) failed: Cannot allocate memory\n"
            ),
        ),
    ],
)
def test_mpi_says_below_an_error_which_rank_it_ended(explain_text: Explain, cause: str, lines: str) -> None:
    for ended in (
        "[nid004400] - Abort(1): Internal error\n",
        (
            "[unknown] [nid004400] - Abort(672) (rank 77 in comm 0): Fatal error in PMPI_Isend: Other MPI "
            "error, error stack:\nPMPI_Isend(160)......: MPI_Isend(buf=0xab, count=9) failed\naborting job:\n"
            "Fatal error in PMPI_Isend: Other MPI error, error stack:\n"
        ),
    ):
        said = f"{lines}MPICH ERROR [Rank 77] [job id 1149.0] [Mon Feb 15 14:58:48 2027] {ended}"
        verdict = explain_text(said)
        assert (verdict.cause, verdict.where.host, verdict.where.rank) == (cause, "nid004400", 77)


def test_an_mpi_that_srun_cannot_start_is_told_before_its_start_that_failed(explain_text: Explain) -> None:
    said = (
        'The application appears to have been direct launched using "srun",\n'
        "but OMPI was not built with SLURM's PMI support and therefore cannot\n"
        "execute. There are several options for building PMI support under\n"
        "SLURM, depending upon the SLURM version you are using:\n"
        "*** An error occurred in MPI_Init\n*** on a NULL communicator\n"
        "[gpu7:1687] Local abort before MPI_INIT completed completed successfully, but am not able to stop\n"
        "srun: error: gpu7: task 1: Exited with exit code 1\n"
    )
    verdict = explain_text(said)
    assert (verdict.cause, verdict.where.host) == ("mpi_without_pmi", "gpu7")
    assert explain_text(said.partition("therefore cannot\n")[2]).cause == "mpi_without_pmi"


def test_a_name_that_does_not_resolve_stands_behind_a_host_that_ssh_does_not_reach(
    explain_text: Explain,
) -> None:
    reach = uncaught(
        "RuntimeError: Using hostfile at /etc/hostfile but host=gpu-5 was not reachable via ssh."
    )
    name = "ssh: Could not resolve hostname gpu-5: Name or service not known\n"
    for log in (reach + name, name + reach):
        assert explain_text(log).cause == "ssh_name_unknown"
    assert explain_text(reach).cause == "ssh_failed"


CUT_DOWN = (
    "srun: forcing job termination\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    "slurmstepd: error: *** STEP 4323.0 ON gpu-03 CANCELLED AT 2026-04-15T19:07:03 ***\n"
    "srun: error: gpu-03: task 0: Killed\n"
)


def test_srun_that_was_ended_itself_is_told_from_a_job_that_was_cancelled(explain_text: Explain) -> None:
    verdict = explain_text(CUT_DOWN)
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("consequence", "srun_ended", "gpu-03")
    assert explain_text(CUT_DOWN.partition("\n")[2]).cause == "job_cancelled"
    scheduler = (
        "slurmstepd: error: *** JOB 4323 ON gpu-03 CANCELLED AT 2026-04-15T19:07:03 DUE TO TIME LIMIT ***\n"
    )
    assert explain_text(CUT_DOWN + scheduler).cause == "time_limit"
    failed = "srun: error: gpu-03: task 1: Exited with exit code 3\n"
    assert explain_text(failed + CUT_DOWN).cause == "exited_first"


def test_ctrl_c_that_srun_passes_on_is_an_interrupt(explain_text: Explain) -> None:
    verdict = explain_text(
        "srun: interrupt (one more within 1 sec to abort)\n"
        "srun: StepId=88.0 tasks 0-7: running\n"
        "srun: sending Ctrl-C to StepId=88.0\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    )
    assert (verdict.kind, verdict.cause) == ("consequence", "interrupted")


CRASHED = """\
{0}[gn3:393:2:447] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)
{0}==== backtrace (tid:    447) ====
{0}    0  /opt/ucx/lib/libucs.so.0(+0x2293c) [0x2aab23b7a93c]
{0}    1  /opt/ucx/lib/libuct.so.0(uct_rkey_release+0xe) [0x2aab2393f51e]
{0}    2  /opt/mpi/lib/libmpi.so.40(MPI_Bcast+0x116) [0x2aaabb3fb776]
{0}===================
srun: error: gn3: task 0: Segmentation fault
"""
NO_CONTEXT = (
    "0: [1581715406.914568] [gn3:393:2]    cuda_ipc_md.c:62   UCX  ERROR cuCtxGetDevice(&cu_device) failed: "
    "invalid device context\n"
)


def test_library_of_a_crash_is_told_though_srun_reports_the_crash_too(explain_text: Explain) -> None:
    verdict = explain_text(CRASHED.format("0: "))
    assert (verdict.cause, verdict.where.host, verdict.where.task) == ("segfault", "gn3", 0)
    assert verdict.details["library"] == "/opt/ucx/lib/libuct.so.0"


def test_thread_of_mpi_without_a_gpu_explains_the_crash_that_follows(explain_text: Explain) -> None:
    verdict = explain_text(NO_CONTEXT + CRASHED.format("0: "))
    assert (verdict.kind, verdict.cause) == ("cause", "ucx_context")
    assert (verdict.where.host, verdict.where.task) == ("gn3", 0)
    other = NO_CONTEXT.replace("invalid device context", "out of memory")
    assert explain_text(other + CRASHED.format("0: ")).cause != "ucx_context"


def test_kernel_names_the_library_of_a_crash_unless_it_is_that_of_c(explain_text: Explain) -> None:
    line = "[ 123.456] python3[991]: segfault at 18 ip 00007f3a sp 00007ffd error 4 in {}[7f3a+1a]\n"
    assert explain_text(line.format("libnccl.so.2.18.5")).details == {"library": "libnccl.so.2.18.5"}
    assert explain_text(line.format("libc.so.6")).details == {}


def test_program_that_is_not_in_the_folder_that_a_step_was_moved_to_is_for_the_folder(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "slurmstepd: error: couldn't chdir to `/work/gpt': No such file or directory: going to /tmp instead\n"
        "bash: line 2: ./start.sh: No such file or directory\n"
        "srun: error: gn12: task 0: Exited with exit code 127\n"
    )
    assert verdict.cause == "slurm_in_tmp"
    assert dict(verdict.details)["path"] == "/work/gpt"


def test_what_a_command_did_without_the_rest_of_its_line_is_explained_by_that(explain_text: Explain) -> None:
    cut = "job.sh: line 11: --config: command not found\njob.sh: line 12: --output: command not found\n"
    verdict = explain_text("FATAL ERROR: could not make the folder ./out\n" + cut)
    assert (verdict.kind, verdict.cause, verdict.details["option"]) == (
        "suspect", "line_continuation", "--config",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("cp: cannot stat '/work/u/flow/*': No such file or directory", "file_missing"),
        ("mkdir: cannot create directory '/scratch/u': Permission denied", "permission_denied"),
        ("/spool/job7/slurm_script: line 8: cd: /scratch/u/7: No such file or directory", "file_missing"),
    ],
)
def test_the_first_command_of_a_script_that_failed_is_told(
    explain_text: Explain, line: str, cause: str
) -> None:
    log = f"{line}\ncat: out.txt: No such file or directory\nPreparing the image\nCopying files\n"
    verdict = explain_text(log)
    assert (verdict.kind, verdict.cause, verdict.evidence[0].line) == ("suspect", cause, 1)
    assert explain_text(log + "all is well\n" * 80).kind != "suspect"


def test_the_command_that_a_signal_ended_is_named(explain_text: Explain) -> None:
    for said, cause in (("Aborted", "abort"), ("Segmentation fault", "segfault")):
        log = f"/spool/job7/slurm_script: line 61: 8907 {said}   (core dumped) ./solve --grid 8\n"
        verdict = explain_text(log)
        assert (verdict.cause, verdict.details["command"]) == (cause, "./solve --grid 8")


def test_of_processes_that_hydra_lists_the_one_that_crashed_is_told(explain_text: Explain) -> None:
    report = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    report += "=   RANK {} PID 7{} RUNNING AT gn7\n=   KILLED BY SIGNAL: {}\n"
    killed = "".join(report.format(rank, rank, "9 (Killed)") for rank in (0, 1))
    verdict = explain_text(killed + report.format(2, 2, "11 (Segmentation fault)"))
    assert (verdict.cause, verdict.where.host, verdict.where.rank) == ("segfault", "gn7", 2)
    assert explain_text(killed).cause == "killed"


def test_the_host_of_one_task_is_not_that_of_another(explain_text: Explain) -> None:
    raised = "".join(f"1: [rank7]: {line}\n" for line in uncaught("ValueError: no shard").splitlines())
    verdict = explain_text(raised + "srun: error: gn1: task 0: Exited with exit code 1\n")
    assert (verdict.where.host, verdict.where.task, verdict.where.rank) == (None, 1, 7)
    verdict = explain_text(raised + "srun: error: gn2: task 1: Exited with exit code 1\n")
    assert (verdict.where.host, verdict.where.task) == ("gn2", 1)


def test_the_number_of_its_rank_in_a_message_makes_it_no_other(explain_text: Explain) -> None:
    raised = (uncaught(f"AssertionError: [{rank}]: wrong shape").splitlines() for rank in (7, 4))
    log = "".join(
        f"[rank{rank}]: {line}\n" for rank, lines in zip((7, 4), raised, strict=True) for line in lines
    )
    verdict = explain_text(log)
    assert verdict.where.rank == 7
    assert any("same on rank 4" in text for text in verdict.notes)


def test_a_variable_that_a_script_lacks_is_named_with_what_it_could_not_read_before(
    explain_text: Explain,
) -> None:
    unset = "/spool/job7/slurm_script: line 40: RUN_ROOT: unbound variable\n"
    verdict = explain_text("Preparing the run\n" + unset)
    assert (verdict.cause, verdict.details["variable"]) == ("shell_variable_unset", "RUN_ROOT")
    read = "/spool/job7/slurm_script: line 9: /work/u/paths.sh: No such file or directory\n"
    verdict = explain_text(read + unset)
    assert (verdict.cause, verdict.details["path"]) == ("file_missing", "/work/u/paths.sh")
    assert explain_text(read.replace("slurm_script", "other.sh") + unset).cause == "shell_variable_unset"


def test_all_that_did_not_prepare_a_job_is_named(explain_text: Explain) -> None:
    conda = "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n"
    module = 'Lmod has detected the following error: The following module(s) are unknown:\n"solver"\n\n'
    verdict = explain_text(conda + "\n" + module)
    assert (verdict.kind, verdict.cause) == ("suspect", "conda_not_initialised")
    assert any("module of the job's script" in text for text in verdict.notes)
    assert explain_text(module).details["name"] == "solver"


def test_a_crash_in_the_start_of_mpi_is_told_by_what_mpi_said(explain_text: Explain) -> None:
    failed = "Abort(672) on node 0 (rank 0 in comm 0): Fatal error in internal_Init: Other MPI error\n"
    crash = "forrtl: severe (174): SIGSEGV, segmentation fault occurred\n"
    assert explain_text(failed + crash).cause == "mpi_init"
    assert explain_text(crash).cause == "fortran_segfault"
