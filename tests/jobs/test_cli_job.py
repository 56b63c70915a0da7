"""``platform-launch job`` as its users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from platform_launch.cli import main
from platform_launch.health import quarantine
from platform_launch.health.quarantine import QuarantinedNode
from platform_launch.jobs import TARGETS
from platform_launch.supervise import DEFAULT_GRACE_S
from tests.jobs.manifests import pod_templates

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--name", "demo", "--image", "a/b:1", "--nodes", "2")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: demo\nimage: a/b:1\nnodes: 2\nenv: {A: one, B: two}\narguments: [--lr, 1e-3]\n",
        encoding="utf-8",
    )
    return file


def container(text: str) -> dict[str, object]:
    found: dict[str, object] = pod_templates(list(yaml.safe_load_all(text)))[0]["spec"]["containers"][0]
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
    assert found["args"] == ["--", "--other"]
    assert {"name": "A", "value": "one"} in found["env"]  # type: ignore[operator]
    assert {"name": "B", "value": "mine"} in found["env"]  # type: ignore[operator]


def test_arguments_behind_two_dashes_belong_to_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--", "--nodes", "7", "--"]) == 0
    assert container(capsys.readouterr().out)["args"] == ["--", "--nodes", "7", "--"]


def test_a_script_of_ones_own_is_a_flag_and_a_key(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--script", "/data/a b.py", "--", "--lr", "1"]) == 0
    assert container(capsys.readouterr().out)["args"] == ["--script", "/data/a b.py", "--", "--lr", "1"]
    with job_file.open("a", encoding="utf-8") as file:
        file.write("script: /data/train.py\n")
    assert main(["job", "slurm", "--file", str(job_file)]) == 0
    assert f"{ROOT}/start_multinode_platform.sh --script /data/train.py -- --lr" in capsys.readouterr().out
    assert main(["job", "slurm", "--file", str(job_file), "--script", ""]) == 66


def test_a_job_that_names_nothing_to_run_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["job", "slurm", "--name", "demo"]) == 0
    assert "nothing to run: expected one of --script FILE" in capsys.readouterr().err
    for named in (["--option=--script=/a.py", "--", "train"], ["--option=--module=pkg.train"], ["--", "ls"]):
        assert main(["job", "slurm", "--name", "demo", *named]) == 0
        assert "nothing to run" not in capsys.readouterr().err


def test_launcher_options_are_refused_before_the_job_waits_in_a_queue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["job", "kubernetes", *FLAGS, "--option=--strickt"]) == 64
    assert "options '--strickt'" in capsys.readouterr().err
    assert main(["job", "kubernetes", *FLAGS, "--option=--help"]) == 64
    assert capsys.readouterr().out == ""


def test_a_longer_grace_period_of_the_launcher_makes_kubernetes_wait_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = []
    for options in ([], ["--option=--grace-period=300"]):
        assert main(["job", "kubernetes", *FLAGS, *options]) == 0
        (template,) = pod_templates(list(yaml.safe_load_all(capsys.readouterr().out)))
        waits.append(template["spec"]["terminationGracePeriodSeconds"])
    assert waits == [DEFAULT_GRACE_S + 35, 335]


@pytest.mark.parametrize("grace", ["inf", "nan", "1e9"])
def test_an_endless_grace_period_is_refused(grace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "kubernetes", *FLAGS, f"--option=--grace-period={grace}"]) == 64
    assert "--grace-period" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["kubernetes", "--name", "demo"], 64, "names no image"),
        (["kubernetes", "--image", "a"], 64, "has no name"),
        (["kubernetes", *FLAGS, "--nodes", "0"], 64, "nodes '0'"),
        (["kubernetes", *FLAGS, "--nodes", "two"], 64, "nodes 'two'"),
        (["kubernetes", *FLAGS, "--volume", "data"], 64, "volume 'data'"),
        (["kubernetes", *FLAGS, "--env", "A"], 64, "expected NAME=VALUE"),
        (["kubernetes", *FLAGS, "--secret-env", "hf_abcdef"], 64, "expected NAME=VALUE"),
        (["kubernetes", *FLAGS, "--memory-gib", "16", "--shm-gib", "16"], 64, "does not fit"),
        (["kubernetes", *FLAGS, "--file", "/nowhere.yaml"], 66, "cannot be read"),
        (["kubernetes", "--file", "/nowhere.yaml"], 66, "platform-launch init writes one"),
        (["kubernets", *FLAGS], 64, "kubernets"),
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
        ("nodes: [2]\n", "nodes is a list: expected one text or number"),
        ("volumes: data:/data\n", "expected a list of texts"),
        ("env: [A=b]\n", "expected a mapping of texts"),
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
    write = ["job", "slurm", "--name", "demo", "--output", str(target)]
    assert main(write) == 0
    first = target.read_text("utf-8")
    assert target.stat().st_mode & 0o777 == 0o644
    assert "sbatch" in capsys.readouterr().err
    assert main([*write, "--nodes", "4"]) == 64
    assert "add --force" in capsys.readouterr().err
    assert target.read_text("utf-8") == first
    assert main([*write, "--nodes", "4", "--force"]) == 0
    assert "#SBATCH --nodes=4" in target.read_text("utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["job.sbatch"]


def test_nothing_is_left_behind_where_nothing_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "slurm", "--name", "demo", "--output", "/nowhere/job.sbatch"]) == 66
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
    assert "volcano has no place for: requeue, time" in capsys.readouterr().err


def test_slurm_warns_of_an_entrypoint_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "slurm", "--name", "my_demo", "--script", "/train.py"]) == 0
    said = capsys.readouterr()
    assert str(ROOT / "start_multinode_platform.sh") in said.out
    assert said.err == ""
    assert main(["job", "slurm", "--name", "demo", "--entrypoint", "/nowhere/start.sh"]) == 0
    assert "is not here" in capsys.readouterr().err


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
    assert main(["job", "slurm", "--name", "demo", "--env", f"HF_TOKEN={SECRET}"]) == 0
    said = capsys.readouterr()
    assert "set it where you call sbatch" in said.err
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
    assert main(["job", "slurm", "--name", "demo", "--script", "/train.py", *file]) == 0
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
    assert done.stderr.strip() == "[]"


def test_what_somebody_would_regret_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--name", "demo", "--image", "a/b:1", "--nodes", "4", "--gpus-per-node", "8"]
    main(["job", "jobset", *flags, "--cpus", "10", "--script", "train.py"])
    said = capsys.readouterr().err
    for regret in (
        "4 × 8 GPUs and no RDMA resource",
        "10 CPUs feed 8 GPUs",
        "the path of the script is relative",
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
        for template in pod_templates(list(yaml.safe_load_all(capsys.readouterr().out))):
            affinity = template["spec"]["affinity"]["nodeAffinity"]
            [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert term["matchExpressions"] == [
                {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["gn1", "gn7"]}
            ]
            named = {variable["name"] for variable in template["spec"]["containers"][0]["env"]}
            assert {"PLATFORM_LAUNCH_QUARANTINE", "PLATFORM_LAUNCH_NODE_NAME"} <= named
