"""Lines that look like a cause and are none: probes, retries, quotations, what another failure led to."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress, uncaught

OOM = uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    "line",
    [
        "Upload failed: 503 Server Error: Service Unavailable for url: https://log.example/, retrying (1/5)",
        "Skipping an optional kernel: No module named 'apex.normalization'; 'apex' is not a package",
        "no fused kernels here: Torch not compiled with CUDA enabled",
        '  --timeout S  raise it after "DataLoader timed out after 300 seconds"',
        "2026:01:02-03:04:05:( 4456) |CCL_WARN| atl_ofi.cpp:9 f: can't create providers for name shm",
        "2026-01-02 03:04:05.123456: W external/local_xla/xla/service.cc:77] Check failed: no autotuning",
        "[0] MPI startup(): tmi fabric is not available and fallback fabric is enabled",
        "/var/spool/slurmd/job9/slurm_script: line 9: /proc/sys/vm/drop_caches: Permission denied",
        "run.sh: line 9: /scratch/out/metrics.json: Permission denied",
        "Image https://cdn.example/cat.png is not available",
        "WARNING: Could not lookup the current user's information: user: unknown userid 20417",
        (
            "[LightGBM] [Warning] Connecting to rank 2 failed, waiting for 200 milliseconds\n"
            "[LightGBM] [Info] Local rank: 0, total number of machines: 4"
        ),
        "c++: probe: gcc: error: unrecognized command-line option '-march=native'",
        "run.sh: line 5: ulimit: stack size: cannot modify limit: Operation not permitted",
        "conftest.c:14:10: error: expected expression before ';' token",
        "conftest.c:(.text+0x1f): undefined reference to `pthread_create'",
    ],
)
def test_what_the_training_went_on_after_is_not_its_cause(explain_text: Explain, line: str) -> None:
    assert explain_text(f"{line}\n{progress(20)}{OOM}").cause == "cuda_out_of_memory"


@pytest.mark.parametrize(
    "line",
    [
        "To fix `RuntimeError: CUDA error: an illegal memory access was encountered`, run one worker.",
        "If the job says slurmstepd: error: Detected 1 oom_kill event, ask for more memory.",
        "[W socket.cpp:464] The server socket has failed to bind to [::]:2950 (errno: 97 - Address family)",
        (
            "[W socket.cpp:601] The client socket has failed to connect to [::1]:29500 "
            "(errno: 99 - Cannot assign requested address)."
        ),
        "sample: 'slurmstepd: error: Detected 1 oom_kill event'",
        "[3] Q: Why do I see CUDA out of memory. Tried to allocate 2.00 GiB?",
        "prediction: OSError: [Errno 28] No space left on device",
        "+    raise OSError('[Errno 28] No space left on device')",
        "  --on-oom WHAT         what to do when CUDA runs out of memory: raise, skip",
        "[3242.11] Memory cgroup out of memory: Killed process 991 (java) total-vm:1048576kB",
    ],
)
def test_what_speaks_of_a_failure_is_not_the_cause(explain_text: Explain, line: str) -> None:
    assert explain_text(f"{progress(20)}{line}\n").kind != "cause"
    assert explain_text(f"{line}\n{uncaught('KeyError: 3')}").title == "KeyError: 3"


def test_a_limit_that_a_shell_may_not_raise_and_warnings_of_a_compiler_are_no_failure(
    explain_text: Explain,
) -> None:
    for line in (
        "run.sh: line 5: ulimit: stack size: cannot modify limit: Operation not permitted\n",
        "src/blas.cpp:68:1: warning: non-void function does not return a value [-Wreturn-type]\n",
        "grid.cu(12): warning #177-D: variable 'n' was declared but never referenced\n",
        "[INFO] built with -acc=gpu, the file was compiled on gn04\n",
    ):
        assert explain_text(line).kind == "nothing"
    probed = "conftest.c:14:10: error: expected expression\n"
    assert explain_text(probed + progress(20)).kind == "nothing"
    assert explain_text("stencil.c:10:5: error: expected declaration\n").cause == "compile_failed"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "F0102 03:04:05.1 42 comm.cc:39] Check failed: ok remote process exited or there was",
            "nccl_aborted",
        ),
        (
            "[2026-01-02 03:04:05,123 C 42 42] core.cc:20:  Check failed: ok IOError: Broken pipe",
            "connection_lost",
        ),
    ],
)
def test_a_check_that_failed_because_another_process_ended_is_a_consequence(
    explain_text: Explain, line: str, cause: str
) -> None:
    verdict = explain_text(f"{progress(5)}{line}\n")
    assert (verdict.kind, verdict.cause) == ("consequence", cause)


def test_the_advice_of_cuda_in_the_same_line_does_not_hide_its_error(explain_text: Explain) -> None:
    advice = (
        "CUDA kernel errors might be asynchronously reported at some other API call. For debugging consider"
    )
    error = "CUDA error: an illegal memory access was encountered"
    line = f"ERROR 01-02 03:04:05 worker.py:99] {error} {advice} passing CUDA_LAUNCH_BLOCKING=1\n"
    assert explain_text(progress(5) + line).cause == "illegal_memory_access"
    assert explain_text(f"{advice} passing CUDA_LAUNCH_BLOCKING=1\n").kind == "nothing"


def test_an_error_of_another_rank_below_a_timeout_is_its_cause(explain_text: Explain) -> None:
    waited = uncaught("RuntimeError: EI0006: socket wait timeout, remoteRank 5", "[rank0]: ")
    failed = uncaught(
        "RuntimeError: NPU function error: aclrtSynchronizeStream, error code is 507015", "[rank5]: "
    )
    verdict = explain_text(waited + failed)
    assert (verdict.cause, verdict.where.rank) == ("npu_error", 5)


def test_a_submodule_that_code_did_without_does_not_explain_a_later_error(explain_text: Explain) -> None:
    caught = (
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/plug/load.py", line 12, in load\n'
        "    importlib.import_module(name)\n"
        "ModuleNotFoundError: No module named 'apex.normalization'\n"
    )
    verdict = explain_text(caught + progress(5) + uncaught("RuntimeError: the sampler's state is lost"))
    assert verdict.cause == "python_exception"


def test_a_word_before_an_exception_is_no_host(explain_text: Explain) -> None:
    words = "tracker: ConnectionError: not reached\ntracker:     attempt 1\n"
    assert explain_text(words + uncaught("MyError: oh")).where.host is None


def test_the_command_that_a_launcher_prints_names_no_rank(explain_text: Explain) -> None:
    command = "['/env/bin/python', '-u', 'train.py', '--local_rank=3']"
    head = "[2026-01-02 03:04:39,231] [ERROR] [launch.py:325:sigkill_handler]"
    verdict = explain_text(f"{OOM}{head} {command} exits with return code = 1\n")
    assert (verdict.cause, verdict.where.local_rank) == ("cuda_out_of_memory", None)


def test_the_rank_of_a_matrix_in_a_command_is_no_place(explain_text: Explain) -> None:
    command = "['python', 'train_lora.py', '--rank=32', '--mode=x']"
    verdict = explain_text(
        f"subprocess.CalledProcessError: Command '{command}' died with <Signals.SIGSEGV: 11>.\n"
    )
    assert (verdict.cause, verdict.where.rank) == ("segfault", None)


def test_a_full_shared_memory_of_multiprocessing_is_no_full_disk(explain_text: Explain) -> None:
    verdict = explain_text(
        "Traceback (most recent call last):\n"
        '  File "/home/u/prepare.py", line 12, in <module>\n'
        "    frame.parallel_apply(f)\n"
        '  File "/env/lib/python3.11/multiprocessing/heap.py", line 89, in __init__\n'
        "    os.ftruncate(self.fd, size)\n"
        "OSError: [Errno 28] No space left on device\n"
    )
    assert verdict.cause == "shared_memory"


def test_what_breaks_over_http_is_no_lost_process(explain_text: Explain) -> None:
    verdict = explain_text(
        uncaught("ConnectionResetError: [Errno 104] Connection reset by peer")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + uncaught(
            "requests.exceptions.ConnectionError: ('Connection aborted.', "
            "ConnectionResetError(104, 'Connection reset by peer'))"
        )
    )
    assert (verdict.kind, verdict.cause) == ("cause", "http_connection")


def test_a_carriage_return_in_a_script_is_named(explain_text: Explain) -> None:
    verdict = explain_text(
        "slurm_script: line 14: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory\n"
        "srun: error: gn01: task 0: Exited with exit code 126\n"
    )
    assert (verdict.cause, dict(verdict.details)["path"]) == ("line_ends", "./run.sh")
    assert explain_text("/usr/bin/env: 'python3\\r': No such file or directory\n").cause == "line_ends"


EVENTS = """  Warning  FailedMount  12m  kubelet  MountVolume.SetUp failed: configmap "x" not found
  Warning  FailedCreatePodSandBox  11m  kubelet  Failed to create pod sandbox: rpc error: code = Unknown
"""


def test_what_a_pod_waited_for_before_it_started_is_not_why_it_failed(explain_text: Explain) -> None:
    assert explain_text(EVENTS).cause == "pod_secret"
    started = "  Normal   Started  10m  kubelet  Started container trainer\n"
    assert explain_text(EVENTS + started + progress(5) + OOM).cause == "cuda_out_of_memory"


def test_a_task_that_ended_before_the_training_is_not_why_its_ranks_waited(explain_text: Explain) -> None:
    ended = "srun: error: gn14: task 3: Exited with exit code 1\n"
    failed = (
        "[rank{0}]:[E1003 08:11:52.1 x.cpp:756] [Rank {0}] Some NCCL operations have failed or timed out.\n"
    )
    waited = "".join(failed.format(rank) for rank in range(3))
    assert explain_text(ended + waited).cause == "exited_first"
    assert explain_text(ended + progress(100) + waited).cause == "nccl_aborted"


def test_what_sagemaker_reports_of_a_script_is_read(explain_text: Explain) -> None:
    report = (
        "UnexpectedStatusException: Error for Training job t-1: Failed. Reason: ExecuteUserScriptError:\n"
        'ExitCode 1\nErrorMessage "{0}"\nCommand "/opt/conda/bin/python3.10 train.py", exit code: 1\n'
    )
    memory = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"
    assert explain_text(report.format(memory)).cause == "cuda_out_of_memory"
    assert "rows differ" in explain_text(report.format("ValueError: rows differ")).title


def test_what_a_log_ends_with_is_quoted_where_nothing_looks_like_an_error(explain_text: Explain) -> None:
    for ending in ("", "\n", "\n\n \n"):
        verdict = explain_text("starting\nloading shard 3 of 9" + ending)
        assert verdict.notes == ("log0 ends with line 2: loading shard 3 of 9",), repr(ending)
    many = explain_text(*["loading\n"] * 20)
    assert len(many.notes) == 8


@pytest.mark.parametrize("program", ["/usr/libexec/git-core/git-remote-https", "curl"])
def test_a_broken_program_of_the_system_is_no_cause_of_a_crash(explain_text: Explain, program: str) -> None:
    broken = (
        f"{program}: symbol lookup error: /lib64/libldap.so.2: undefined symbol: EVP_md2, version SSL_3\n"
    )
    crashed = "train.sh: line 9: 4711 Segmentation fault      python train.py\n"
    assert explain_text(broken + crashed).cause == "segfault"
    training = broken.replace(program, "/env/bin/python")
    assert explain_text(training + crashed).cause == "extension_abi"


def test_what_python_only_warns_of_is_no_failure_however_long_the_path_before_it(
    explain_text: Explain,
) -> None:
    package = "/opt/conda/envs/weather/lib/python3.11/site-packages/torch_geometric"
    warning = (
        f"{package}/typing.py:63: UserWarning: An issue occurred while importing 'torch-scatter'. "
        "Stacktrace: /opt/torch_scatter/_version_cpu.so: undefined symbol: _ZN3c1017RegisterOperatorsD1Ev\n"
        "  warnings.warn(\n"
    )
    assert explain_text(warning * 4 + "loading the plan of the run\n" * 9).kind == "nothing"
    assert explain_text(f"{warning}{uncaught('KeyError: 3')}").title == "KeyError: 3"


@pytest.mark.parametrize(
    "line",
    [
        "./configure: line 14546: SITE_GET_INFO: command not found",
        (
            "W0408 15:09:14.450000 606754 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1331] "
            "The node 'gn4_606754_0' has failed to send a keep-alive heartbeat to the rendezvous '1439' due "
            "to an error of type RendezvousTimeoutError."
        ),
    ],
)
def test_what_a_build_probes_and_what_a_node_that_leaves_no_longer_hears_is_no_failure(
    explain_text: Explain, line: str
) -> None:
    assert explain_text(f"{progress(20)}{line}\n").kind == "nothing"


def test_what_failed_above_a_cancelled_job_is_likely_why_it_was_cancelled(
    explain_text: Explain,
) -> None:
    cancelled = "slurmstepd-gn4: error: *** JOB 77 ON gn4 CANCELLED AT 2026-03-16T14:55:36 ***\n"
    slip = "/var/spool/slurm/d/job77/slurm_script: line 23: SEQUENCE_LENGTH: command not found\n"
    verdict = explain_text(slip + cancelled)
    assert (verdict.kind, verdict.cause) == ("suspect", "command_missing")
    assert [one.id for one in verdict.consequences] == ["job_cancelled"]
    for innocent in ("", "UserWarning: a fallback is used: no kernel image\n", progress(20)):
        assert explain_text(innocent + cancelled).notes == ()


@pytest.mark.parametrize("state", ["SUCCEEDED", "WorkerState.SUCCEEDED"])
def test_a_worker_group_that_succeeded_is_no_end_with_an_error(explain_text: Explain, state: str) -> None:
    finished = "INFO:torch.distributed.elastic.agent.server.api:Local worker group finished ({}). Waiting\n"
    assert explain_text(progress(3) + finished.format(state)).evidence == ()
    assert explain_text(progress(3) + finished.format("WorkerState.FAILED")).evidence != ()


def test_what_the_launcher_raises_of_its_script_is_no_cause(explain_text: Explain) -> None:
    elastic = "/env/lib/python3.11/site-packages/torchelastic"
    verdict = explain_text(
        "[ERROR] local_elastic_agent: [default] Worker group failed\nTraceback (most recent call last):\n"
        f'  File "{elastic}/agent/server/local_elastic_agent.py", line 224, in _monitor_workers\n'
        "    if self._process_context.join(timeout=-1):\n"
        '  File "/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 119, in join\n'
        "    raise Exception(msg)\nException:\n\n-- Process 2 terminated with the following error:\n"
        "Traceback (most recent call last):\n"
        f'  File "{elastic}/distributed/launch.py", line 401, in wrapper_fn\n'
        "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
        "subprocess.CalledProcessError: Command '['python', 'a.py']' returned non-zero exit status 1.\n"
    )
    assert verdict.kind == "unknown"


def test_the_text_of_a_warning_is_no_error_of_its_own(explain_text: Explain) -> None:
    warned = (
        "/usr/lib/python3/popen_fork.py:66: RuntimeWarning: Using fork() can cause a deadlock.\n"
        "In addition, it is a recipe for crashes.\n\n"
        "The most likely reason you are seeing this error is that you use the module.\n\n"
    )
    assert explain_text(warned + "  self.pid = os.fork()\n").kind == "nothing"
    assert explain_text(warned + "  self.pid = os.fork()\nerror: no such table\n").kind == "unknown"


def test_a_server_that_was_asked_in_vain_until_a_job_was_cancelled_is_named(explain_text: Explain) -> None:
    tried = (
        "'(MaxRetryError('HTTPSConnectionPool(host=\\'huggingface.co\\', port=443): Max retries exceeded "
        "(Caused by NameResolutionError(\"Failed to resolve \\'huggingface.co\\'\"))'))' thrown while "
        "requesting HEAD https://huggingface.co/u/m/resolve/main/config.json\nRetrying in 1s [Retry 1/5].\n"
    )
    assert explain_text(tried + "step 1 loss 2.1\n" * 20).kind == "nothing"
    cancelled = "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-03-12T14:38:09 ***\n"
    verdict = explain_text(tried * 2 + cancelled)
    assert verdict.cause == "job_cancelled"
    assert any("hub is unreachable" in text for text in verdict.notes)
