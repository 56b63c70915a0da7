"""``platform-launch job`` as its users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.cli import init, job, main, run
from platform_launch.health import quarantine
from platform_launch.health.quarantine import QuarantinedNode
from platform_launch.jobs import TARGETS
from platform_launch.supervise import DEFAULT_GRACE_S
from tests.jobs.manifests import documents, pod_templates

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--name", "demo", "--image", "a/b:1", "--nodes", "2", "--script", "/t.py")
SLURM = ("job", "slurm", "--name", "demo", "--script", "/t.py")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: demo\nimage: a/b:1\nnodes: 2\nenv: {A: one, B: two}\nscript: /t.py\narguments: [--lr, 1e-3]\n",
        encoding="utf-8",
    )
    return file


def container(text: str) -> dict[str, object]:
    found: dict[str, object] = pod_templates(documents(text))[0]["spec"]["containers"][0]
    return found


def test_flags_and_a_job_file_say_the_same(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", "--file", str(job_file)]) == 0
    from_file = capsys.readouterr().out
    flags = [*FLAGS, "--env", "A=one", "--env", "B=two"]
    assert main(["job", "kubernetes", *flags, "--", "--lr", "1e-3"]) == 0
    assert capsys.readouterr().out == from_file


def test_flags_win_over_the_file(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "jobset", "--file", str(job_file), "--env", "B=mine", "--", "--other"]) == 0
    found = container(capsys.readouterr().out)
    assert found["args"] == ["--script", "/t.py", "--", "--other"]
    assert {"name": "A", "value": "one"} in found["env"]  # type: ignore[operator]
    assert {"name": "B", "value": "mine"} in found["env"]  # type: ignore[operator]


def test_arguments_behind_two_dashes_belong_to_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--", "--nodes", "7", "--"]) == 0
    assert container(capsys.readouterr().out)["args"] == ["--script", "/t.py", "--", "--nodes", "7", "--"]


def test_a_script_of_ones_own_is_a_flag_and_a_key(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--script", "/data/a b.py", "--", "--lr", "1"]) == 0
    assert container(capsys.readouterr().out)["args"] == ["--script", "/data/a b.py", "--", "--lr", "1"]
    text = job_file.read_text("utf-8").replace("/t.py", "/data/train.py")
    job_file.write_text(text, encoding="utf-8")
    assert main(["job", "slurm", "--file", str(job_file)]) == 0
    assert f"{ROOT}/start_multinode_platform.sh --script /data/train.py -- --lr" in capsys.readouterr().out
    assert main(["job", "slurm", "--file", str(job_file), "--script", ""]) == 66


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (["--script", "/t.py", "--", "--lr", "1"], "--script /t.py -- --lr 1"),
        (["--module", "pkg.train", "--", "--lr", "1"], "--module pkg.train -- --lr 1"),
        (["-m", "pkg.train", "--launcher", "jax"], "--module pkg.train --launcher=jax"),
        (["--", "llamafactory-cli", "train", "x.yaml"], "-- llamafactory-cli train x.yaml"),
        (["--example", "taehv"], "--example=taehv"),
    ],
)
def test_job_offers_the_forms_of_run(
    given: list[str], arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "slurm", "--name", "demo", *given]) == 0
    assert capsys.readouterr().out.endswith(f"/start_multinode_platform.sh {arguments}\n")


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("pai-dlc", "Alibaba PAI-DLC needs no file: let it start platform-launch run"),
        ("lws", "did you mean leaderworkerset?"),
        ("slurmm", "did you mean slurm?"),
        ("k8s", "platform-launch job --help"),
    ],
)
def test_another_name_than_a_target_gets_the_way_to_go(
    target: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", target, *FLAGS]) == 64
    said = capsys.readouterr().err
    assert f"target {target!r}: expected one of {', '.join(TARGETS)}" in said
    assert said.partition("hint:  ")[2].startswith(hint)


OF_ONE_NODE = {"nnodes", "node_rank", "master_addr", "platform", "ranks_from"}
REHEARSALS = {"print_env", "assume_gpus", "form"}


def test_every_option_of_run_is_an_option_of_job_and_init() -> None:
    of_run = {option.name for option in run.command.params}
    assert of_run - {option.name for option in job.command.params} == OF_ONE_NODE | REHEARSALS
    assert of_run - {option.name for option in init.command.params} == (OF_ONE_NODE | REHEARSALS) - {
        "master_addr"  # init has one of its own: the address of node 0
    }


def test_options_of_run_reach_the_launcher_after_those_of_the_file(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with job_file.open("a", encoding="utf-8") as file:
        file.write("options: [--launcher=jax, --strict]\n")
    given = ["--launcher", "torchrun", "--on-hang", "stop", "--no-doctor"]
    assert main(["job", "kubernetes", "--file", str(job_file), *given]) == 0
    options = ["--launcher=jax", "--strict", "--launcher=torchrun", "--on-hang=stop", "--no-doctor"]
    arguments = container(capsys.readouterr().out)["args"]
    assert arguments == ["--script", "/t.py", *options, "--", "--lr", "1e-3"]


def test_launcher_options_are_refused_before_the_job_waits_in_a_queue(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (["--launcher=torchrum"], ["--max-restarts=-1"], ["--strickt"]):
        assert main(["job", "kubernetes", *FLAGS, *given]) == 64
        assert given[0].partition("=")[2] in capsys.readouterr().err
    for option in ("--strickt", "--help"):
        job_file.write_text(f"name: demo\nimage: a/b:1\noptions: [{option}]\n", encoding="utf-8")
        assert main(["job", "kubernetes", "--file", str(job_file)]) == 64
        said = capsys.readouterr()
        assert f"options '{option}'" in said.err
        assert said.out == ""


def test_a_longer_grace_period_of_the_launcher_makes_kubernetes_wait_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = []
    for options in ([], ["--grace-period=300"]):
        assert main(["job", "kubernetes", *FLAGS, *options]) == 0
        (template,) = pod_templates(documents(capsys.readouterr().out))
        waits.append(template["spec"]["terminationGracePeriodSeconds"])
    assert waits == [DEFAULT_GRACE_S + 35, 335]


@pytest.mark.parametrize("grace", ["inf", "nan", "1e9"])
def test_an_endless_grace_period_is_refused(grace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, f"--grace-period={grace}"]) == 64
    assert "--grace-period" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["kubernetes", "--name", "demo", "--script", "/t.py"], 64, "names no image"),
        (["kubernetes", "--image", "a", "--script", "/t.py"], 64, "has no name"),
        (["kubernetes", "--name", "demo", "--image", "a"], 64, "nothing to run: expected one of --script"),
        (["kubernetes", "--name", "demo", "--image", "a", "--", "--lr", "1"], 64, "nothing to run"),
        (["kubernetes", *FLAGS, "--module", "pkg.train"], 64, "script and module: expected one of them"),
        (["kubernetes", *FLAGS, "--nodes", "0"], 64, "nodes '0'"),
        (["kubernetes", *FLAGS, "--nodes", "two"], 64, "nodes 'two'"),
        (["kubernetes", *FLAGS, "--volume", "data"], 64, "volume 'data'"),
        (["kubernetes", *FLAGS, "--env", "A"], 64, "expected NAME=VALUE"),
        (["kubernetes", *FLAGS, "--secret-env", "hf_abcdef"], 64, "expected NAME=VALUE"),
        (["kubernetes", *FLAGS, "--memory-gib", "16", "--shm-gib", "16"], 64, "does not fit"),
        (["kubernetes", *FLAGS, "--file", "/nowhere.yaml"], 66, "cannot be read"),
        (["kubernetes", "--file", "/nowhere.yaml"], 66, "platform-launch init writes one"),
        (["kubernets", *FLAGS], 64, "kubernets"),
        (
            ["kubernetes", *FLAGS, "--entrypoint", "/w/train.py"],
            64,
            "the training script is not the entrypoint",
        ),
        (["kubernetes", *FLAGS, "--security", "restricted", "--rdma", "rdma/a"], 64, "IPC_LOCK"),
        (["kubernetes", *FLAGS, "--security", "restricted", "--host-network"], 64, "host_network"),
        (["kubernetes", *FLAGS, "--security", "restricted", "--volume", "/a:/b"], 64, "a folder of the node"),
        (["kubernetes", *FLAGS, "--security", "restricted", "--volume", "n:/a:/b"], 64, "an NFS volume"),
        (["kubernetes", *FLAGS, "--security", "restricted", "--run-as", "0"], 64, "run_as 0"),
        (["kubernetes", *FLAGS, "--patch", "/nowhere.yaml"], 64, "/nowhere.yaml cannot be read"),
        (["kubernetes", *FLAGS, "train.py"], 64, "train.py"),
        (["slurm", "--name", "a", "--account", "a b"], 64, "account 'a b'"),
        (["kubernetes", *FLAGS, "--name", "my_job"], 64, "for example my-job"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_exit_code(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "hf_abcdef" not in said.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodse: 2\n", "did you mean nodes?"),
        ("nodes: [2]\n", "nodes is a list: expected one string or number"),
        ("volumes: data:/data\n", "expected a list of strings"),
        ("env: [A=b]\n", "expected a mapping of strings"),
        ("- a\n", "is not a job"),
        ("", "is not a job"),
        ("a: [\n", "line 2 is not YAML: expected the node content, but found '<stream end>'\n"),
        ("a: " + "[" * 5000 + "\n", "is not YAML: maximum recursion depth exceeded"),
        ("requeue: perhaps\n", "expected true or false"),
    ],
)
def test_a_wrong_job_file_is_refused_by_key(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["job", "slurm", "--file", str(file), "--name", "demo"]) == 66
    assert words in capsys.readouterr().err


def test_a_file_is_written_once_and_over_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "job.sbatch"
    write = [*SLURM, "--output", str(target)]
    assert main(write) == 0
    first = target.read_text("utf-8")
    assert target.stat().st_mode & 0o777 == 0o644
    assert f"submit it with: sbatch {target}" in capsys.readouterr().err
    assert main([*write, "--nodes", "4"]) == 64
    assert "add --force" in capsys.readouterr().err
    assert target.read_text("utf-8") == first
    assert main([*write, "--nodes", "4", "--force"]) == 0
    assert "#SBATCH --nodes=4" in target.read_text("utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["job.sbatch"]


def test_nothing_is_left_behind_where_nothing_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SLURM, "--output", "/nowhere/job.sbatch"]) == 66
    said = capsys.readouterr().err
    assert "cannot be written: there is no folder" in said
    assert "hint:  mkdir -p " in said


def test_check_compares_a_file_with_what_the_job_gives_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "job.yaml"
    command = ["job", "kubernetes", *FLAGS, "--output", str(target)]
    assert main([*command, "--check"]) == 66
    assert "the same command without --check writes it" in capsys.readouterr().err
    assert not target.exists()
    assert main(command) == 0
    assert main([*command, "--check"]) == 0
    assert main([*command, "--nodes", "3", "--check"]) == 66
    said = capsys.readouterr()
    assert "+  parallelism: 3" in said.out
    assert "write it again" in said.err


def test_check_alone_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--check"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "valid" in said.err


def test_what_a_target_leaves_out_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "volcano", *FLAGS, "--time", "1:00:00", "--requeue"]) == 0
    assert "volcano cannot express these settings: requeue, time" in capsys.readouterr().err


def test_slurm_warns_of_an_entrypoint_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "slurm", "--name", "my_demo", "--script", "/train.py", "--cpus", "64"]) == 0
    said = capsys.readouterr()
    assert str(ROOT / "start_multinode_platform.sh") in said.out
    assert said.err == ""
    assert main([*SLURM, "--entrypoint", "/nowhere/start.sh"]) == 0
    assert "does not exist here" in capsys.readouterr().err


SECRET = "hf_0123456789abcdefghij"


def test_a_pasted_secret_is_warned_of_by_name_with_the_way_around_it(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--env", f"HF_TOKEN={SECRET}"]) == 0
    said = capsys.readouterr()
    assert said.err.count("looks like a secret") == 1, said.err
    assert "--secret-env HF_TOKEN=SECRET:KEY" in said.err
    assert SECRET not in said.err
    with job_file.open("a", encoding="utf-8") as file:
        file.write(f"options: [--log-dir=/logs]\nsecret_env: {{HF_TOKEN: hub:token}}\nscript: {SECRET}\n")
    assert main(["job", "jobset", "--file", str(job_file), "--", "--api-key", SECRET]) == 0
    said = capsys.readouterr()
    assert "--api-key looks like a secret" in said.err
    assert "HF_TOKEN" not in said.err
    assert SECRET not in said.err


def test_slurm_is_told_of_the_secret_where_sbatch_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SLURM, "--env", f"HF_TOKEN={SECRET}"]) == 0
    said = capsys.readouterr()
    assert "set it in the shell that calls sbatch" in said.err
    assert SECRET not in said.err


def test_the_secret_that_nodes_share_comes_from_a_secret_or_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    secret = ["--secret-env", "PLATFORM_LAUNCH_SECRET=launch:secret"]
    assert main(["job", "kubernetes", *FLAGS, *secret]) == 0
    said = capsys.readouterr()
    assert "looks like a secret" not in said.err
    assert {
        "name": "PLATFORM_LAUNCH_SECRET",
        "valueFrom": {"secretKeyRef": {"name": "launch", "key": "secret"}},
    } in container(said.out)["env"]  # type: ignore[operator]
    file = ["--env", "PLATFORM_LAUNCH_SECRET_FILE=/shared/home/me/launch.secret"]
    assert main(["job", "slurm", "--name", "demo", "--cpus", "64", "--script", "/train.py", *file]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "export PLATFORM_LAUNCH_SECRET_FILE=/shared/home/me/launch.secret\n" in said.out


def test_no_torch_is_imported() -> None:
    code = (
        "import sys; from platform_launch.cli import main;"
        "main(['job', 'kubernetes', '--name', 'a', '--image', 'b', '--script', '/c.py']);"
        "print(sorted({'torch', 'accelerate', 'deepspeed'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_slurm_without_requeue_is_told_of_its_cpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "slurm", "--name", "demo", "--script", "/t.py", "--gpus-per-node", "4"]) == 0
    assert "--cpus-per-task is 32, 8 per process" in capsys.readouterr().err


def test_cpus_and_memory_that_nobody_gives_are_a_share_for_each_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["job", "kubernetes", *FLAGS, "--gpus-per-node", "4", "--script", "/t.py"]
    assert main(job) == 0
    said = capsys.readouterr()
    requests, limits = {"cpu": 16, "memory": "64Gi"}, {"nvidia.com/gpu": 4}
    assert container(said.out)["resources"] == {"requests": requests, "limits": limits}
    assert "no --cpus: each pod requests 16 CPUs, 4 per GPU" in said.err
    assert "no --memory-gib: each pod requests 64 GiB, 16 per GPU" in said.err
    assert (
        main(["job", "kubernetes", *FLAGS, "--gpus-per-node", "4", "--cpus", "90", "--script", "/t.py"]) == 0
    )
    said = capsys.readouterr()
    limits["cpu"] = 90
    assert container(said.out)["resources"] == {"requests": {"memory": "64Gi"}, "limits": limits}
    assert "no --cpus" not in said.err


def test_what_only_shows_after_hours_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    timed = [*FLAGS, "--script", "/t.py", "--time", "20:00:00"]
    assert main(["job", "jobset", *timed]) == 0
    assert "with 3 retries the job may run 4 times as long" in capsys.readouterr().err
    assert main(["job", "jobset", *timed, "--retries", "0"]) == 0
    assert main(["job", "kubernetes", *timed]) == 0
    assert main(["job", "pytorchjob", *timed]) == 0
    said = capsys.readouterr().err
    assert "times as long" not in said
    assert "set --time" not in said
    assert main(["job", "pytorchjob", *FLAGS, "--script", "/t.py"]) == 0
    assert "without limit: set --time" in capsys.readouterr().err


def test_a_limit_that_may_be_meant_as_hours_and_minutes_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SLURM, "--time", "1:30"]) == 0
    assert capsys.readouterr().err.count("the time limit is only 00:01:30 (hours:minutes:seconds)") == 1
    assert main([*SLURM, "--time", "1:30:00"]) == 0
    assert "time limit" not in capsys.readouterr().err


def test_what_was_submitted_is_replaced_by_a_command_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a b.yaml"
    quoted = f"'{file}'"
    assert main(["job", "trainjob", *FLAGS, "--script", "/t.py", "--output", str(file)]) == 0
    said = capsys.readouterr().err
    assert f"submit it with: kubectl apply -f {quoted}" in said
    assert "TrainingRuntime is not known yet, submit the file again" in said
    assert (
        f"to replace it: kubectl delete --cascade=foreground --ignore-not-found -f {quoted} "
        f"&& kubectl apply -f {quoted}"
    ) in said
    assert main(["job", "leaderworkerset", *FLAGS, "--output", str(file), "--force"]) == 0
    assert "to replace it" not in capsys.readouterr().err


def test_what_somebody_would_regret_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--name", "demo", "--image", "a/b:1", "--nodes", "4", "--gpus-per-node", "8"]
    main(["job", "jobset", *flags, "--cpus", "10", "--script", "train.py"])
    said = capsys.readouterr().err
    for regret in (
        "4 × 8 GPUs without an RDMA resource",
        "10 CPUs for 8 GPUs",
        "path is relative to",
    ):
        assert regret in said
    main(["job", "jobset", *flags, "--cpus", "64", "--rdma", "rdma/a", "--script", "/job/train.py"])
    assert "[WARN]" not in capsys.readouterr().err


def test_a_job_keeps_off_the_nodes_in_quarantine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "quarantine.jsonl"
    quarantine.add(file, QuarantinedNode("gn7", 0.0, None, "XID 79"))
    flags = [*FLAGS, "--exclude", "gn1", "--quarantine", str(file)]
    assert main(["job", "slurm", *flags]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --exclude=gn1,gn7\n" in script
    assert f"export PLATFORM_LAUNCH_QUARANTINE={file}\n" in script
    for target in set(TARGETS) - {"slurm"}:
        assert main(["job", target, *flags]) == 0
        for template in pod_templates(documents(capsys.readouterr().out)):
            affinity = template["spec"]["affinity"]["nodeAffinity"]
            [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert term == {
                "matchFields": [
                    {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("gn1", "gn7")
                ]
            }
            named = {variable["name"] for variable in template["spec"]["containers"][0]["env"]}
            assert {"PLATFORM_LAUNCH_QUARANTINE", "PLATFORM_LAUNCH_NODE_NAME"} <= named


def test_arguments_in_a_job_file_may_be_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: demo\nmodule: pkg.train\narguments: [--lr, 1e-3]\n", encoding="utf-8")
    assert main(["job", "slurm", "--file", str(file)]) == 0
    assert capsys.readouterr().out.endswith(" --module pkg.train -- --lr 1e-3\n")
    file.write_text("name: demo\narguments: [bash, train.sh]\n", encoding="utf-8")
    assert main(["job", "slurm", "--file", str(file)]) == 0
    assert capsys.readouterr().out.endswith(" -- bash train.sh\n")
