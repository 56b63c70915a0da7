"""Whatever a value holds, it comes back as it was typed, or is refused with the reason."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.errors import InputError
from platform_launch.jobs import TARGETS, render
from platform_launch.jobs.description import Value, read, to_job, write
from platform_launch.jobs.job import SecretVariable, Volume
from platform_launch.jobs.names import suggest_name
from tests.jobs.controllers import CONTROLLERS
from tests.jobs.manifests import ENTRYPOINT, KUBERNETES_TARGETS, a_job, documents
from tests.lab.waiting import LIMIT_S

TEXTS = [
    "", " ", "a b", "'", '"', "it's \"so\"", "\\", "\\n", "two\nlines", "\ttab", "trailing\n", "#x", "a #x",
    "- x", "-x", "--", "---", "...", "%d", "@x", "`x`", "!x", "&x", "*x", "? x", "x:", "x: y", ": x",
    "[", "{}", "{{x}}", "${x}", "$(x)", "$$(x)", "$HOME", "$(HOSTNAME)", "$$", "$", "$(", "$(id)",
    "`id`", ";id", "|id", "é", "漢字", "🚀", "\u2028", "\ufeff", "yes", "No", "on", "y", "n", "true",
    "null", "~", "012",
    "0o17", "0x1f", "1:30", "12:30:45", "1e3", "1_000", "-.5", ".inf", ".nan", "2024-01-01", "<<", "=",
    "%s{name}", "x" * 3000,
]  # fmt: skip
REFUSED = ["\x00", "a\x07", "\r\n", "\x1b[31m", "\x7f", "\x85", "\udcff"]


def random_texts(count: int) -> list[str]:
    """Mixtures of the characters that mean something to YAML, bash or the kubelet; the same at every run."""
    source = random.Random(20250)
    alphabet = "ab01 \n\t'\"\\$(){}[]#:,-&*!|>%@`~;<=?./é漢🚀\u2028"
    return ["".join(source.choices(alphabet, k=source.randint(1, 30))) for _ in range(count)]


@pytest.mark.parametrize("target", KUBERNETES_TARGETS)
def test_arguments_and_variables_reach_the_container_as_they_were_typed(target: str) -> None:
    texts = [*TEXTS, *random_texts(500)]
    env = tuple((f"V{index}", text) for index, text in enumerate(texts))
    text = render(a_job(script="/a.py", arguments=tuple(texts), env=env, retries=0), target)
    node = CONTROLLERS[target](text, 1)
    assert node.argv == ["/bin/bash", ENTRYPOINT, "--script", "/a.py", "--", *texts]
    assert {name: node.variables[name] for name, _ in env} == dict(env)


def test_arguments_and_variables_reach_the_batch_jobs_command_as_they_were_typed(tmp_path: Path) -> None:
    texts = [*TEXTS, *random_texts(500)]
    env = tuple((f"V{index}", text) for index, text in enumerate(texts))
    report = f"import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('{tmp_path}/out', 'w'))"
    srun = tmp_path / "srun"
    srun.write_text(f"#!{sys.executable}\n{report}\n", encoding="utf-8")
    srun.chmod(0o755)
    script = tmp_path / "job.sbatch"
    script.write_text(
        render(a_job(script="/a.py", arguments=tuple(texts), env=env), "slurm"), encoding="utf-8"
    )
    done = subprocess.run(
        ["/bin/bash", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0
    argv, variables = json.loads((tmp_path / "out").read_text(encoding="utf-8"))
    assert argv[argv.index("/bin/bash") :] == ["/bin/bash", ENTRYPOINT, "--script", "/a.py", "--", *texts]
    assert {name: variables[name] for name, _ in env} == dict(env)


@pytest.mark.parametrize("text", REFUSED)
def test_control_characters_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="control characters"):
        a_job(arguments=(text,))
    with pytest.raises(InputError, match="control characters"):
        a_job(env=(("A", text),))


def test_a_job_file_means_its_texts_whatever_yaml_would_make_of_them() -> None:
    text = """
        name: demo
        entrypoint: /start.sh
        nodes: 2
        time: 1:30:00
        env: {A: yes, B: 012, C: 1:30, D: null, E: 1e3, F: 2024-01-01, G: ~}
        script: /a.py
        arguments: [no, 0x1f, 1_000]
    """
    job = to_job(read(text, "job.yaml"), 60)
    assert dict(job.env) == {
        "A": "yes", "B": "012", "C": "1:30", "D": "null", "E": "1e3", "F": "2024-01-01", "G": "~",
    }  # fmt: skip
    assert job.arguments == ("no", "0x1f", "1_000")
    assert job.time_limit_s == 5400


def test_a_written_job_file_reads_back_as_the_same_job() -> None:
    texts = [*TEXTS, *random_texts(200)]
    description: dict[str, Value] = {
        "name": "demo", "entrypoint": ENTRYPOINT, "nodes": "2", "time": "1:30:00", "requeue": "true",
        "script": "/a.py", "arguments": texts, "env": {f"V{index}": text for index, text in enumerate(texts)},
        "volumes": ["data:/data:ro"], "secret_env": {"KEY": "secret:key"},
    }  # fmt: skip
    assert to_job(read(write(description), "job.yaml"), 60) == to_job(description, 60)


BAD_NAMES = [
    "", "A", "Taehv_16", "-x", "x-", "1x", "a.b", "a b", "a\nb", "é", "a" * 46, "x;id", "$(id)", "--help",
    "a/b", "{{x}}",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_cannot_name_hosts_are_refused_with_one_that_can(name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be part of host names|expected at most") as caught:
        render(a_job(name=name), "jobset")
    assert caught.value.hint in ("", f"for example {suggest_name(name)}")
    assert a_job(name=suggest_name(name)).name == suggest_name(name)


def test_the_longest_name_leaves_room_for_what_controllers_append() -> None:
    for target in KUBERNETES_TARGETS:
        node = CONTROLLERS[target](render(a_job(name="a" * 45, nodes=9999), target), 9998)
        assert len(node.hostname) + len("-abcde") <= 63


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(
            ["image", "queue", "account", "namespace"], ["", "-x", "a b", "a\nb", "$(id)", "é"]
        ),
        *itertools.product(
            ["entrypoint"],
            ["", "relative", "-x", "/a:b.sh", "/a\x00.sh", "start.sh", "/train.py", "/bin/true"],
        ),
    ],
)
def test_names_of_other_things_are_refused_when_nobody_could_take_them(field: str, value: str) -> None:
    with pytest.raises(InputError):
        a_job(**{field: value})


@pytest.mark.parametrize("value", ["a b", "a;b", "a\n#SBATCH --uid=0", "a'b", "$(id)", "-x", "é"])
def test_a_batch_directive_holds_nothing_that_would_need_quotes(value: str) -> None:
    with pytest.raises(InputError):
        render(a_job(account=value), "slurm")


@pytest.mark.parametrize(
    "name", ["1A", "A B", "A=B", "A-B", "", "é", "MASTER_ADDR", "RANK", "PET_NNODES", "SLURM_NODEID"]
)
def test_variables_that_the_scheduler_sets_or_no_shell_takes_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        a_job(env=((name, "x"),))
    with pytest.raises(InputError):
        SecretVariable(name, "secret", "key")


def test_one_variable_has_one_source() -> None:
    with pytest.raises(InputError, match="set twice"):
        a_job(env=(("KEY", "x"),), secret_env=(SecretVariable("KEY", "secret", "key"),))


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/", "relative", "/a:b"])
def test_volumes_go_to_free_absolute_paths(path: str) -> None:
    with pytest.raises(InputError):
        a_job(volumes=(Volume("data", path),))


def test_two_volumes_do_not_share_a_path() -> None:
    with pytest.raises(InputError, match="already used"):
        a_job(volumes=(Volume("one", "/data"), Volume("two", "/data/")))


def test_hostile_volume_sources_and_labels_are_quoted_or_refused() -> None:
    job = a_job(volumes=(Volume("/mnt/{{x}} $(id) 'a'", "/data"),), node_selector=(("zone", "012"),))
    pod = documents(render(job, "kubernetes"))[1]["spec"]["template"]["spec"]
    assert pod["volumes"][1]["hostPath"]["path"] == "/mnt/{{x}} $(id) 'a'"
    assert pod["nodeSelector"] == {"zone": "012"}
    with pytest.raises(InputError):
        a_job(node_selector=(("zone", "a b"),))


def test_no_secret_is_ever_written() -> None:
    job = a_job(secret_env=(SecretVariable("TOKEN", "hub", "token"),))
    for target in TARGETS:
        text = render(job, target)
        assert "TOKEN" in text
        assert ("secretKeyRef" in text) == (target != "slurm")


def test_a_pasted_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InputError) as caught:
        to_job({"name": "a", "secret_env": {"TOKEN": "hf_abcdef"}}, 60)
    assert "hf_abcdef" not in caught.value.message + caught.value.hint
