"""What containers and their runtimes say where a job does not start in one."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress

ABSENT = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            f"srun: error: plugin_load_from_file: dlopen(/slurm/hash_k12.so): libjson-c.so.5: {ABSENT}",
            "slurm_libraries",
        ),
        (
            f"/host/bin/srun: error while loading shared libraries: libslurmfull.so: {ABSENT}",
            "slurm_libraries",
        ),
        (
            f"srun: error: plugin_load_from_file: dlopen(/slurm/mpi_pmix.so): libpmix.so.2: {ABSENT}",
            "library_missing",
        ),
        (
            f"slurmstepd: error: plugin_load_from_file: dlopen(/slurm/a.so): libpmix.so.2: {ABSENT}",
            "library_missing",
        ),
        (f"./solve: error while loading shared libraries: libhdf5.so.200: {ABSENT}", "library_missing"),
    ],
)
def test_library_that_srun_lacks_is_told_from_one_of_a_program_or_of_mpi(
    explain_text: Explain, line: str, cause: str
) -> None:
    assert explain_text(f"{line}\n").cause == cause


def test_plugin_that_srun_cannot_load_is_no_job_that_was_refused(explain_text: Explain) -> None:
    verdict = explain_text(
        f"srun: error: plugin_load_from_file: dlopen(/slurm/hash_k12.so): libjson-c.so.5: {ABSENT}\n"
        "srun: fatal: Can't find plugin for hash/k12\n"
    )
    assert (verdict.cause, verdict.noted) == ("slurm_libraries", ())
    assert explain_text("srun: fatal: No command given to execute.\n").cause == "slurm_refused"


def test_library_that_a_query_to_slurm_lacked_before_the_training_ran_is_no_failure(
    explain_text: Explain,
) -> None:
    query = f"squeue: error while loading shared libraries: libslurmfull.so: {ABSENT}\n"
    assert explain_text(query + progress(30)).cause is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[ERROR] Command not found: nvidia-container-cli, see https://example.org", "container_gpu_tool"),
        ('exec: "nvidia-container-cli": executable file not found in $PATH', "container_gpu_tool"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "container_gpu"),
        ('exec: "nvidia-container-runtime-hook": executable file not found in $PATH', "container_gpu"),
    ],
)
def test_node_without_nvidias_program_for_containers_is_told_from_one_where_it_failed(
    explain_text: Explain, line: str, cause: str
) -> None:
    said = "slurmstepd: error: pyxis:"
    start = f"{said} container start failed with error code: 1\n{said} printing enroot log file:\n"
    hook = f"{said}     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n"
    assert explain_text(f"{start}{said}     {line}\n{hook}").cause == cause


def test_hook_that_lacks_a_program_of_the_image_is_the_cause_though_the_node_has_no_such_folder(
    explain_text: Explain,
) -> None:
    said = "slurmstepd: error: pyxis:"
    verdict = explain_text(
        "slurmstepd: error: couldn't chdir to `/app': No such file or directory: going to /tmp instead\n"
        f"{said} container start failed with error code: 1\n{said} printing enroot log file:\n"
        f"{said}     [ERROR] Command not found: ldconfig\n"
        f"{said}     [ERROR] /etc/enroot/hooks.d/90-net.sh exited with return code 1\n"
        "srun: error: gn7: task 0: Exited with exit code 1\n"
    )
    assert (verdict.cause, verdict.where.host) == ("container_hook", "gn7")


def test_runtime_that_looked_in_vain_for_nvidias_program_and_went_on_is_no_failure(
    explain_text: Explain,
) -> None:
    probe = "INFO:    Command not found: nvidia-container-cli, using the legacy binding of --nv\n"
    assert explain_text(probe + progress(30)).cause is None


def test_program_that_crashed_in_a_hook_is_why_the_container_did_not_start(explain_text: Explain) -> None:
    said = "4: slurmstepd: error: pyxis:"
    start = f"{said} container start failed with error code: 1\n{said} printing enroot log file:\n"
    crash = "/etc/enroot/hooks.d/20-users.sh: line 7: 4711 Aborted      (core dumped) newusers -r < list"
    verdict = explain_text(f"{start}{said}     {crash}\n")
    assert (verdict.cause, verdict.where.task) == ("container_hook", 4)
    assert (verdict.details["hook"], verdict.details["reason"]) == ("20-users.sh", "Aborted")
    pipe = f"{said}     /etc/enroot/hooks.d/20-users.sh: line 8: 12 Broken pipe      yes\n"
    ended = f'{said}          13 Killed                  | pwck -R "${{ENROOT_ROOTFS}}"\n'
    verdict = explain_text(f"{start}{pipe}{ended}")
    assert (verdict.cause, verdict.details["program"]) == ("container_hook", "pwck")


@pytest.mark.parametrize(
    "line",
    [
        "/etc/enroot/hooks.d/20-users.sh: line 8: 12 Broken pipe      yes",
        "[INFO] /etc/enroot/hooks.d/20-users.sh exited with return code 0",
    ],
)
def test_hook_that_did_its_work_is_no_failure(explain_text: Explain, line: str) -> None:
    assert explain_text(f"{line}\n{progress(30)}").cause is None
    assert explain_text(f"{line}\n{progress(3)}Segmentation fault (core dumped)\n").cause == "segfault"


def test_crash_of_a_script_that_is_no_hook_is_a_crash(explain_text: Explain) -> None:
    verdict = explain_text("/work/hooks/run.sh: line 8: 12 Segmentation fault      (core dumped) ./solve\n")
    assert verdict.cause == "segfault"


BUILD = "The command '/bin/sh -c apt-get install -y libfabric-dev' returned a non-zero code: 100\n"


def test_what_a_command_of_the_image_s_build_says_is_why_the_build_failed(explain_text: Explain) -> None:
    assert explain_text(BUILD).cause == "image_build"
    assert explain_text("E: Unable to locate package libfabric-dev\n" + BUILD).cause == "pip_install"
    excerpt = (
        " > [3/5] RUN pip install -e .:\n"
        "0.913 Obtaining file:///opt/fit\n"
        "12.08       OSError: CUDA_HOME environment variable is not set.\n"
        'ERROR: failed to solve: process "/bin/sh -c pip" did not complete successfully: exit code: 1\n'
    )
    assert explain_text(excerpt).cause == "cuda_toolkit_missing"


def test_what_a_docker_daemon_cannot_do_without_is_not_why_a_build_failed(explain_text: Explain) -> None:
    waiting = "Cannot connect to the Docker daemon at unix:///d.sock. Is the docker daemon running?\n"
    daemon = 'time="2026-01-02T03:04:05Z" level=error msg="failed to initialize a tracing processor"\n'
    started = 'time="2026-01-02T03:04:06Z" level=info msg="Daemon has completed initialization"\n'
    assert explain_text(waiting + daemon + started + BUILD).cause == "image_build"
