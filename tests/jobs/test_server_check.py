"""``job --server-check``: the scheduler's own words, and nothing submitted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.cli import main
from tests.jobs.api_server import ApiServer, api_server
from tests.lab.needs import Need

JOB = ["job", "kubernetes", "--name", "demo", "--image", "a/b:1", "--nodes", "2", "-m", "pkg.train"]

requires_kubectl = Need("kubectl", lambda: "" if shutil.which("kubectl") else "needs kubectl").mark


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path, "lab")))
        monkeypatch.setenv("HOME", str(tmp_path))  # kubectl caches what it discovers there
        yield server


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH besides bash's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    bash = shutil.which("bash")
    assert bash is not None
    (folder / "bash").symlink_to(bash)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@requires_kubectl
def test_a_cluster_that_takes_the_job_is_named_and_nothing_is_submitted(
    cluster: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "job.yaml"
    assert main([*JOB, "--server-check", "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "job.batch/demo created (server dry run)" in said.err
    assert "[SUCCESS] the cluster of context lab would accept this job" in said.err
    assert f"kubectl apply -f {output}" in said.err
    assert not output.exists()
    assert [path.rpartition("/")[2] for _, path, _ in cluster.writes] == ["services", "jobs", "pods"]
    assert [query["dryRun"] for _, _, query in cluster.writes] == [["All"]] * 3
    assert [query["fieldValidation"] for _, _, query in cluster.writes] == [["Strict"]] * 3


@requires_kubectl
def test_a_job_whose_pods_would_be_refused_is_refused(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.pod_security = "restricted"
    assert main([*JOB, "--server-check"]) == 66
    said = capsys.readouterr().err
    assert "[WARN] violates PodSecurity restricted:latest" in said
    assert "accepts this job, but rejects its pods" in said
    assert "[SUCCESS]" not in said
    assert main([*JOB, "--security", "restricted", "--server-check"]) == 0
    assert "[SUCCESS]" in capsys.readouterr().err


@requires_kubectl
def test_a_trainjob_is_checked_once_its_runtime_exists(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["job", "trainjob", *JOB[2:], "--server-check"]
    assert main(check) == 0
    said = capsys.readouterr().err
    assert "[WARN] the TrainJob itself was not checked" in said
    assert "with the 1 warning above; nothing was submitted" in said
    assert [path.rpartition("/")[2] for _, path, _ in cluster.writes] == ["trainingruntimes", "pods"]
    cluster.runtimes = ("demo",)
    assert main(check) == 0
    assert "[SUCCESS]" in capsys.readouterr().err
    assert "trainjobs" in [path.rpartition("/")[2] for _, path, _ in cluster.writes]
    assert main([*check, "--runtime", "TrainingRuntime/other"]) == 66
    assert "must be created before the TrainJob" in capsys.readouterr().err


@requires_kubectl
def test_warnings_of_the_server_are_no_success(
    cluster: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warned = "quota of the team ends soon"
    monkeypatch.setattr(
        "tests.jobs.api_server.pod_security_violation",
        lambda body, _level: warned if body["kind"] == "Job" else None,
    )
    assert main([*JOB, "--server-check"]) == 0
    said = capsys.readouterr().err
    assert f"[WARN] {warned}" in said
    assert "would accept this job, with the 1 warning above" in said
    assert "[SUCCESS]" not in said


@requires_kubectl
def test_what_the_cluster_says_against_the_job_is_shown(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.denies = "admission webhook says: exceeded quota: \x1b[31mgpus"
    assert main([*JOB, "--server-check"]) == 66
    said = capsys.readouterr()
    assert "exceeded quota" in said.err
    assert "\x1b" not in said.err
    assert "rejects this job" in said.err
    assert "nothing was submitted" in said.err


@requires_kubectl
def test_a_cluster_that_is_not_reached_is_not_the_jobs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with api_server() as gone:
        monkeypatch.setenv("KUBECONFIG", str(gone.kubeconfig(tmp_path, "lab")))
    assert main([*JOB, "--server-check"]) == 64
    assert "cannot reach a server" in capsys.readouterr().err


@pytest.mark.parametrize(("target", "client"), [("jobset", "kubectl"), ("slurm", "sbatch")])
def test_without_its_client_nobody_can_be_asked(
    target: str, client: str, bin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", target, *JOB[2:], "--server-check"]) == 67
    assert f"{client} is not on PATH" in capsys.readouterr().err


def test_a_job_that_is_refused_here_is_not_shown_to_the_cluster(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(bin_folder, "kubectl", f"echo asked >> {tmp_path}/asked")
    assert main([*JOB, "--namespace", "a.b", "--server-check"]) == 64
    assert not (tmp_path / "asked").exists()


def test_both_checks_together_first_compare_the_file(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(bin_folder, "kubectl", f"echo asked >> {tmp_path}/asked")
    output = tmp_path / "job.yaml"
    assert main([*JOB, "--output", str(output)]) == 0
    both = ["--output", str(output), "--check", "--server-check"]
    assert main([*JOB, *both]) == 0
    assert (tmp_path / "asked").exists()
    (tmp_path / "asked").unlink()
    assert main([*JOB, "--nodes", "3", *both]) == 66
    assert not (tmp_path / "asked").exists()


def test_slurm_is_asked_by_sbatch_with_the_script_itself(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(bin_folder, "sinfo", "echo batch")
    program(
        bin_folder,
        "sbatch",
        f'echo "$1" > {tmp_path}/flag; while read -r line; do echo "$line"; done < "$2" > {tmp_path}/script\n'
        'echo "sbatch: Job 7 to start at noon" >&2',
    )
    assert main(["job", "slurm", "--name", "demo", "--nodes", "2", "-m", "pkg.train", "--server-check"]) == 0
    said = capsys.readouterr()
    assert "Job 7 to start at noon" in said.err
    assert (tmp_path / "flag").read_text("utf-8") == "--test-only\n"
    assert "#SBATCH --nodes=2" in (tmp_path / "script").read_text("utf-8")
