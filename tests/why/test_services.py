"""Services that a training asks over the network, and what runs it in a cloud."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, uncaught

UNRESOLVED = (
    "urllib3.exceptions.NameResolutionError: <urllib3.connection.HTTPSConnection object at 0x76>: "
    "Failed to resolve '{}' ([Errno -3] Temporary failure in name resolution)\n"
)
FRAME = 'File "/env/lib/python3.13/site-packages/{}.py", line 205, in {}\n    raise {}\n'


def test_server_whose_name_does_not_resolve_is_named_with_the_worker_that_asked(
    explain_text: Explain,
) -> None:
    worker = (
        "ray::agent_4:Worker.__init__() (pid=81, ip=10.0.0.17, actor_id=34e0, repr=<Worker object at 0x7>)\n"
    )
    verdict = explain_text(
        FRAME.format("urllib3/connection", "_new_conn", "NameResolutionError(self.host, self, e) from e")
        + UNRESOLVED.format("api.wandb.ai")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + worker
        + "  "
        + FRAME.format("requests/adapters", "send", "ConnectionError(e, request=request)")
        + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443)\n"
    )
    assert (verdict.kind, verdict.cause, verdict.where.host) == ("cause", "server_unresolved", "10.0.0.17")
    assert verdict.details["server"] == "api.wandb.ai"


def test_hub_whose_name_does_not_resolve_is_called_offline(explain_text: Explain) -> None:
    frame = FRAME.format("urllib3/connection", "_new_conn", "NameResolutionError(self.host, self, e) from e")
    said = UNRESOLVED.format("huggingface.co")
    assert explain_text(f"Traceback (most recent call last):\n  {frame}{said}").cause == "hub_offline"


def test_helper_of_wandb_that_does_not_answer_is_no_missing_login(explain_text: Explain) -> None:
    verdict = explain_text("wandb.errors.UsageError: Error communicating with wandb process\n")
    assert verdict.cause == "wandb_helper"
    assert explain_text("wandb.errors.UsageError: api_key not configured (no-tty)\n").cause == "wandb_login"


def test_warning_that_a_server_was_not_found_does_not_hide_what_ended_the_job(explain_text: Explain) -> None:
    warning = "WARNING retrying: Failed to resolve 'metrics.example' (attempt 1)\n"
    verdict = explain_text(warning + "RuntimeError: CUDA Error: out of memory at /src/allocator.cpp:62\n")
    assert verdict.cause == "cuda_out_of_memory"


def test_status_of_a_sagemaker_job_is_no_cause(explain_text: Explain) -> None:
    verdict = explain_text(
        "UnexpectedStatusException: Error for Training job sft-1: Failed. Reason: AlgorithmError: "
        'ExecuteUserScriptError:\nCommand "/opt/conda/bin/python3.11 train.py --epochs 3"\n'
    )
    assert verdict.kind == "unknown"


REPORT = (
    'AlgorithmError: ExecuteUserScriptError: ExitCode 1 ErrorMessage "ZeroDivisionError: division by zero '
    "During handling of the above exception, another exception occurred Traceback (most recent call last) "
    'File "/opt/ml/code/entry.py", line 41, in main result = train() '
    'File "/opt/ml/code/steps.py", line 7, in share return total / parts '
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 3 (pid: 19) of "
    'binary: /opt/conda/bin/python" Command "/opt/conda/bin/python entry.py"\n'
)


def test_traceback_that_sagemaker_put_on_one_line(explain_text: Explain) -> None:
    verdict = explain_text(REPORT)
    assert (verdict.cause, verdict.title) == ("python_exception", "ZeroDivisionError: division by zero")
    assert verdict.where.local_rank == 3


def test_traceback_that_vertex_put_on_one_line(explain_text: Explain) -> None:
    verdict = explain_text(
        "The replica workerpool1-2 exited with a non-zero status of 1. Termination reason: Error. Traceback "
        '(most recent call last): File "/app/run.py", line 9, in <module> main() '
        'File "/app/run.py", line 4, in main return total / parts ZeroDivisionError: division by zero\n'
    )
    assert verdict.exception is not None
    assert (verdict.exception.file, verdict.exception.line) == ("/app/run.py", 4)
    silent = explain_text("The replica workerpool1-2 exited with a non-zero status of 1.\n")
    assert (silent.kind, silent.where.pod) == ("unknown", "workerpool1-2")


def test_known_cause_in_sagemakers_report(explain_text: Explain) -> None:
    verdict = explain_text(
        REPORT.replace("ZeroDivisionError: division by zero", "OSError: [Errno 28] No space left on device")
    )
    assert verdict.cause == "disk_full"


def test_what_wandb_loses_and_refuses_is_told_by_where_it_was_raised(explain_text: Explain) -> None:
    lost = "BrokenPipeError: [Errno 32] Broken pipe"
    wandb = "/env/lib/python3.11/site-packages/wandb/sdk/lib/sock.py"
    traceback = 'Traceback (most recent call last):\n  File "fit.py", line 7, in <module>\n    log()\n'
    frame = '  File "{}", line 9, in send\n    self.sock.send(data)\n'
    assert explain_text(traceback + frame.format(wandb) + lost + "\n").cause == "wandb_network"
    assert (
        explain_text(traceback + frame.format("/env/lib/python3.11/socket.py") + lost).cause
        != "wandb_network"
    )
    key = "ValueError: API key must have 40+ characters, has 9"
    assert explain_text(traceback + frame.format(wandb) + key + "\n").cause == "wandb_login"


def test_limit_of_a_registry_is_told_from_an_image_that_is_not_there(explain_text: Explain) -> None:
    refused = (
        "FATAL:   Unable to handle docker://lab/net:3 uri: reading manifest 3 in docker.io/lab/net: {}\n"
    )
    limited = explain_text(refused.format("toomanyrequests: You have reached your pull rate limit."))
    assert (limited.cause, limited.retry) == ("image_rate_limit", "same_node")
    absent = explain_text(refused.format("manifest unknown"))
    assert (absent.cause, absent.retry) == ("image_pull", "no")


def test_notebook_whose_process_is_gone_is_told_as_such_and_not_as_the_runners_own_exception(
    explain_text: Explain,
) -> None:
    said = "E0102 03:04:05.1 139 execute.py:509] Kernel died while waiting for execute reply.\n"
    reply = (
        'Traceback (most recent call last):\n  File "/env/lib/python3.11/site-packages/nbclient/client.py", '
        "line 9, in _poll\n    raise Empty\nqueue.Empty\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/run/execute.py", line 7, in <module>\n    main()\n'
        '  File "/run/execute.py", line 5, in main\n    run(notebook)\n'
    )
    assert explain_text(said + reply).cause == "notebook_died"
    whole = f"{reply}nbclient.exceptions.DeadKernelError: Kernel died\n"
    assert explain_text(whole).cause == "notebook_died"


def test_exception_of_a_spark_task_is_told_though_its_traceback_is_cut_off(explain_text: Explain) -> None:
    failed = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed "
        "barrier ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(3, 0) "
        "finished unsuccessfully.\norg.apache.spark.api.python.PythonException: 'ValueError: no data'. Full "
        "traceback below:\n"
    )
    frames = 'Traceback (most recent call last):\n  File "/spark/worker.py", line 9, in main\n    run()\n'
    for log in (failed + frames, f"{failed}{frames}ValueError: no data\n"):
        assert explain_text(log).title == "ValueError: no data"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("initialization error: nvml error: driver not loaded", "container_gpu"),
        ("requirement error: unsatisfied condition: cuda>=13.0, please update", "container_driver_old"),
        ("mount error: failed to add device rules: open /sys/fs/cgroup/a: denied", "container_gpu_files"),
        ("mount error: file creation failed: /a/b/socket: no such device or address", "container_gpu_files"),
        ("ldcache error: process /sbin/ldconfig failed with error code: 1", "container_gpu_files"),
    ],
)
def test_what_hinders_nvidias_container_toolkit_is_told_apart(
    explain_text: Explain, reason: str, cause: str
) -> None:
    said = "slurmstepd: error: pyxis:"
    hook = f"{said}     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n"
    assert explain_text(f"{said}     nvidia-container-cli: {reason}\n{hook}").cause == cause


def test_image_that_is_a_broken_file_was_not_to_be_pulled(explain_text: Explain) -> None:
    verdict = explain_text("FATAL:   could not open image /img/a.sif: image format not recognized\n")
    assert (verdict.cause, verdict.details["image"]) == ("image_file", "/img/a.sif")


def test_error_in_skypilots_own_form_is_one(explain_text: Explain) -> None:
    verdict = explain_text(
        "I 03-04 05:06:07 backend.py:31] Setup completed.\n"
        "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)\n"
        "E 03-04 05:06:09 tools.py:84] mux: unable to send, message too long\n"
    )
    assert verdict.first_error is not None
    assert verdict.first_error.line == 3


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('exec: "--gpus": executable file not found in $PATH: unknown.', "container_command"),
        ('exec: "train": executable file not found in $PATH: unknown.', "container_shell"),
        ("unknown or invalid runtime name: nvidia.", "container_gpu"),
        ("layer does not exist", "image_store"),
    ],
)
def test_what_docker_refuses_is_told_apart(explain_text: Explain, said: str, cause: str) -> None:
    failed = "docker: Error response from daemon: failed to create shim: OCI runtime create failed: "
    assert explain_text(f"{failed}{said}\n").cause == cause


def test_pod_whose_node_lacks_nvidias_runtime_has_no_fault_of_the_network(explain_text: Explain) -> None:
    verdict = explain_text(
        "2m  Warning  FailedCreatePodSandBox  pod/sft-3  Failed to create pod sandbox: rpc error: code = "
        'Unknown desc = unable to get OCI runtime for sandbox "a5b1": no runtime for "nvidia" is configured\n'
    )
    assert (verdict.cause, verdict.where.pod) == ("container_gpu", "sft-3")


def test_tpu_that_may_not_be_opened_is_no_failed_assertion(explain_text: Explain) -> None:
    verdict = explain_text(
        "Exception in device=TPU:0: xla_client/service.cc:56 : Check failed: NewServer(def) == Status::OK() "
        "(PERMISSION_DENIED: open(/dev/accel2): Operation not permitted vs. OK)\n"
    )
    assert (verdict.cause, verdict.details["device"]) == ("tpu_closed", "/dev/accel2")


def test_container_that_is_killed_after_another_process_failed_was_only_cleaned_up(
    explain_text: Explain,
) -> None:
    killed = "INFO: container failed with non-zero exit code:  (exit code 137)\n"
    failed = (
        "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing "
        "the job to be terminated. The first process to do so was:\nProcess name: 3\nExit code: 1\n"
    )
    verdict = explain_text(failed + killed)
    assert (verdict.cause, verdict.where.rank, verdict.details) == ("exited_first", 3, {"exit code": "1"})
    assert explain_text(killed).cause == "killed"
    assert explain_text(killed + failed).cause == "killed"
    lost = (
        "[rank1]: RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:5113\n"
    )
    assert explain_text(lost + failed + killed).cause == "killed"


def test_registry_that_does_not_answer_is_told_from_an_image_that_is_not_there(explain_text: Explain) -> None:
    verdict = explain_text(
        'Error response from daemon: Get "https://registry.lab:5000/v2/": net/http: request canceled while '
        "waiting for connection (Client.Timeout exceeded while awaiting headers)\n"
        "Job environment preparation failed on 10.8.0.9. Output:\n"
    )
    assert (verdict.cause, verdict.where.host) == ("registry_unreachable", "10.8.0.9")
    assert verdict.details["server"] == "registry.lab:5000"


def test_image_that_found_no_room_was_not_refused(explain_text: Explain) -> None:
    said = "slurmstepd: error: pyxis:"
    assert (
        explain_text(
            f"{said} failed to import docker image\n{said} printing enroot log file:\n"
            f"{said}     Write failed because No space left on device\n"
        ).cause
        == "container_disk_full"
    )


@pytest.mark.parametrize(
    "said",
    [
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n",
        (
            "Error: setting up CDI devices: failed to inject devices: failed to stat CDI host device "
            '"/dev/dri/card1": no such file or directory\n'
        ),
        (
            "Error: OCI runtime error: crun: error executing hook `/usr/bin/nvidia-cdi-hook` (exit code: 1)\n"
            "Command failed: podman run --device nvidia.com/gpu=all train python train.py\n"
        ),
    ],
)
def test_description_of_the_gpus_for_containers_is_told_from_their_driver(
    explain_text: Explain, said: str
) -> None:
    assert explain_text(said).cause == "cdi_spec"


def test_mpirun_through_kubectl_exec_names_what_the_pod_answered(explain_text: Explain) -> None:
    orte = "ORTE was unable to reliably start one or more daemons.\n"
    verdict = explain_text(
        "error dialing backend: dial tcp 10.0.0.7:10250: getsockopt: connection timed out\n" + orte
    )
    assert (verdict.cause, verdict.where.host) == ("pod_exec", "10.0.0.7")
    gone = explain_text('Error from server (NotFound): pods "sft-worker-1" not found\n' + orte)
    assert (gone.cause, gone.where.pod) == ("pod_exec", "sft-worker-1")


def test_backends_that_jax_only_tries_are_no_cause(explain_text: Explain) -> None:
    tried = "Unable to initialize backend 'rocm': NOT_FOUND: Could not find registered platform"
    verdict = explain_text(f"INFO:absl:{tried}\nI0101 10:00:00.1 7 xla_bridge.py:440] {tried}\n")
    assert not verdict.cause
    assert explain_text(f"RuntimeError: {tried}\n").cause


def test_part_that_was_not_compiled_is_no_circular_import(explain_text: Explain) -> None:
    def of(name: str) -> str:
        return (
            "Traceback (most recent call last):\n"
            '  File "/job/train.py", line 1, in <module>\n'
            "    import horovod.torch as hvd\n"
            f"ImportError: cannot import name '{name}' from partially initialized module 'horovod.torch' "
            "(most likely due to a circular import)\n"
        )

    verdict = explain_text(of("mpi_lib_v2"))
    assert (verdict.cause, verdict.details["module"]) == ("extension_missing", "mpi_lib_v2")
    assert explain_text(of("allreduce")).cause == "module_shadowed"


def test_program_that_a_launcher_did_not_find_stands_before_the_kills_that_came_of_it(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "[proxy:0:1@node2] HYDU_create_process (utils/launch/launch.c:74): execvp error on file train "
        "(No such file or directory)\n"
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   RANK 2 PID 30362 RUNNING AT node2\n"
        "=   KILLED BY SIGNAL: 9 (Killed)\n"
    )
    assert (verdict.cause, verdict.where.host) == ("launch_program", "node2")
    assert verdict.details["path"] == "train"


def test_kubectl_exec_that_was_killed_ran_in_the_pod_whose_daemon_mpirun_lost(explain_text: Explain) -> None:
    def of(*workers: int) -> str:
        lost = "ORTE has lost communication with a remote daemon.\n\n  Remote daemon: [[1,0],1] on node sft-"
        killed = "command terminated with exit code 137\n"
        return killed * len(workers) + "".join(f"{lost}{worker}\n\n" for worker in workers)

    verdict = explain_text(of(3))
    assert (verdict.cause, verdict.where.host) == ("killed", "sft-3")
    assert explain_text(of(3, 4)).where.host is None


def test_ranks_whose_barrier_is_only_counted_are_not_named_as_absent(explain_text: Explain) -> None:
    def of(rank: int, came: int) -> str:
        return (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: "
            f"{rank}, for key: store_based_barrier_key:1 (world_size=8, worker_count={came}, timeout=0:30)\n"
        )

    assert not explain_text(of(0, 5)).notes
    said = explain_text("".join(of(rank, 6) for rank in range(6))).notes
    assert said[-1].endswith("did not come, as far as the logs tell: ranks 6, 7")


def test_debug_lines_of_singularity_are_read_like_its_others(explain_text: Explain) -> None:
    verdict = explain_text(
        "FATAL   [U=0,P=37]         Master()                      container creation failed: "
        "mount /tmp failed: invalid argument\n"
    )
    assert (verdict.cause, verdict.details["path"]) == ("container_mount", "/tmp")


def test_guess_that_a_task_was_preempted_is_no_preemption(explain_text: Explain) -> None:
    verdict = explain_text(
        "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was "
        "preempted/died/restarted unexpectedly or this task is experiencing network issues.\n"
    )
    assert verdict.cause == "jax_peer_lost"


def test_lines_of_a_kubelet_itself_name_the_pod(explain_text: Explain) -> None:
    verdict = explain_text(
        'I0227 10:45:43.700118    3746 eviction_manager.go:560] "Eviction manager: pod ephemeral local '
        'storage usage exceeds the total limit of containers" pod="team-x/sft-7-cgwkc" limit="2Gi"\n'
    )
    assert (verdict.cause, verdict.where.pod) == ("pod_disk", "sft-7-cgwkc")


def test_why_a_volume_was_not_mounted_stands_below(explain_text: Explain) -> None:
    verdict = explain_text(
        '  Warning  FailedMount  102s  kubelet  MountVolume.SetUp failed for volume "nfs" : mount failed: '
        "exit status 32\nMounting command: mount\nOutput: mount.nfs: Connection timed out\n"
    )
    assert (verdict.cause, verdict.details["reason"]) == ("volume_mount", "Connection timed out")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('16m  Warning  FailedScheduling  pod/a  persistentvolumeclaim "data" not found', "volume_unbound"),
        (
            "2m5s  Normal  EvictedDueToPodsReadyTimeout  job/a  Exceeded the PodsReady timeout ml/a",
            "pods_not_ready",
        ),
        (
            "Exception: Timed out waiting for tasks to start. Please check connectivity between servers.",
            "horovod_network",
        ),
        ("ray.exceptions.RpcError: Timed out while waiting for GCS to become available.", "ray_start"),
        (
            "CalledProcessError: Command '['ssh gpu-7 hostname -I']' returned non-zero exit status 255.",
            "ssh_failed",
        ),
        (
            "slurmctld: error: Batch completion for JobId=12 sent from wrong node (c2 rather than c1)",
            "slurm_nodes",
        ),
    ],
)
def test_what_keeps_a_job_from_its_start_is_named(explain_text: Explain, said: str, cause: str) -> None:
    assert explain_text(f"{said}\n").cause == cause


def test_count_of_cpus_that_slurm_conf_has_wrong_stands_behind_what_ended_slurmd(
    explain_text: Explain,
) -> None:
    differs = "slurmd: error: Node configuration differs from hardware: CPUs=12:12(hw) Boards=1:1(hw)\n"
    verdict = explain_text(differs + "slurmd: error: cannot find cgroup plugin for cgroup/v2\n")
    assert verdict.cause == "slurm_cgroup"
    assert explain_text(differs).cause == "slurm_hardware"


REFUSED_BY_A_PEER = (
    "INTERNAL: NCCL operation ncclCommInitRank() failed: unhandled system error. Last NCCL warning(error) "
    "log entry (may be unrelated) 'socketPollConnect: connect to 10.1.0.9<41021> returned no answer'."
)


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (
            "INVALID_ARGUMENT: GlobalTopologyProto contains multiple processes with the same process ID",
            "cause",
            "nccl_rank_count",
        ),
        ("UNKNOWN: Failed to start RPC server", "cause", "jax_coordinator_port"),
        (
            "ALREADY_EXISTS: Different local topology for node 2 has been set previously.",
            "consequence",
            "jax_restarted",
        ),
        (
            REFUSED_BY_A_PEER,
            "consequence",
            "nccl_connect",
        ),
    ],
)
def test_what_jax_raises_where_its_processes_do_not_meet(
    explain_text: Explain, error: str, kind: str, cause: str
) -> None:
    verdict = explain_text(uncaught(f"jax.errors.JaxRuntimeError: {error}"))
    assert (verdict.kind, verdict.cause) == (kind, cause)


def test_devices_of_jax_that_all_wait_for_their_leader(explain_text: Explain) -> None:
    verdict = explain_text(
        "F1126 12:00:49.11 4017 rendezvous.cc:110] [id=0] Termination timeout for `first call` of 40 "
        "seconds exceeded. Exiting to ensure a consistent program state. All 2 threads joined.\n"
        "*** Check failure stack trace: ***\n"
        "Fatal Python error: Aborted\n"
    )
    assert (verdict.kind, verdict.cause) == ("consequence", "jax_threads")
