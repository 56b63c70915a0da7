"""``platform-launch init``: on a real terminal, and where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from platform_launch.cli import COMMANDS, main
from platform_launch.errors import InputError
from platform_launch.jobs.description import read, to_job
from platform_launch.jobs.questions import questions
from tests.jobs.controllers import CONTROLLERS
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "platform_launch", "init")


class Terminal:
    """A person at a terminal: waits for a question, types an answer."""

    def __init__(self, folder: Path, *arguments: str, programs: str = "/usr/bin:/bin") -> None:
        self._fd, theirs = pty.openpty()
        env = {
            "PATH": programs,
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "TERM": "xterm",
            "COLUMNS": "120",
        }
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(theirs)
        self.screen = ""
        self._seen = 0

    def answer(self, question: str, text: str) -> None:
        """Wait for ``question`` after the last answer and type ``text`` and Enter."""
        limit = time.monotonic() + LIMIT_S
        while question not in self.screen[self._seen :]:
            assert time.monotonic() < limit, f"no {question!r} in {self.screen[self._seen :]!r}"
            assert self._more(), f"ended before {question!r}: {self.screen[self._seen :]!r}"
        self._seen = len(self.screen)
        os.write(self._fd, text.encode() + (b"" if text == "\x04" else b"\n"))

    def end(self) -> int:
        """Read to the end and return the exit code."""
        limit = time.monotonic() + LIMIT_S
        while self._more():
            assert time.monotonic() < limit
        os.close(self._fd)
        return self._process.wait(LIMIT_S)

    def _more(self) -> bool:
        assert select.select([self._fd], [], [], LIMIT_S)[0], f"silent: {self.screen[self._seen :]!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self.screen += re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", data.decode("utf-8", "replace"))
        return bool(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "My Model_2"
    made.mkdir()
    return made


def test_kubernetes_is_asked_for_step_by_step(folder: Path) -> None:
    terminal = Terminal(folder)
    terminal.answer("choice", "4")
    terminal.answer("choice", "jobset")
    terminal.answer("Name of the job (my-model-2)", "")
    terminal.answer("Number of nodes", "many")
    terminal.answer("expected a whole number", "2")
    terminal.answer("GPUs per node", "8")
    terminal.answer("Container image, with platform_launch installed in it", "")
    terminal.answer("an image is needed", "https://registry.example/taehv")
    terminal.answer("expected a form like", "registry.example/taehv:1")
    terminal.answer("the path of its entrypoint (platform-launch)", "/w/train.py")
    terminal.answer("the training script is not the entrypoint", "")
    terminal.answer("What to run", "")
    terminal.answer("nothing to run", "train.py --name 'a b")
    terminal.answer("close every quote", "train.py --name 'a b'")
    terminal.answer("Volume with your data", "data:/data")
    terminal.answer("Variable from a Secret", "hf_value")
    terminal.answer("expected NAME=SECRET:KEY", "HF_TOKEN=hub:token")
    terminal.answer("Write job.yaml, jobset.yaml?", "yes")
    assert terminal.end() == 0
    for shown in ("2 × 8 GPUs without an RDMA", "path is relative to", "kind: JobSet"):
        assert shown in terminal.screen
    assert "kubectl apply -f jobset.yaml" in terminal.screen
    job = to_job(read((folder / "job.yaml").read_text("utf-8"), "job.yaml"), 60)
    assert (job.name, job.nodes, job.gpus_per_node, job.image) == (
        "my-model-2", 2, 8, "registry.example/taehv:1",
    )  # fmt: skip
    node = CONTROLLERS["jobset"]((folder / "jobset.yaml").read_text("utf-8"), 1)
    assert node.variables["NNODES"] == "2"
    assert (job.script, job.arguments) == ("train.py", ("--name", "a b"))
    assert [(volume.source, volume.path) for volume in job.volumes] == [("data", "/data")]
    assert [(s.variable, s.secret, s.key) for s in job.secret_env] == [("HF_TOKEN", "hub", "token")]


def test_hosts_that_are_named_are_counted_and_offered_to_be_started(folder: Path) -> None:
    terminal = Terminal(folder, "--gpus-per-node", "0", "--name", "demo")
    terminal.answer("choice", "several-nodes")
    terminal.answer("Hosts, as gn1,gn2", "gn1,gn1")
    terminal.answer("twice", "gn[1-2]")
    terminal.answer("What to run", "train.py")
    terminal.answer("Write job.yaml?", "")
    terminal.answer("Start it on gn1, gn2 over ssh now?", "")
    assert terminal.end() == 0
    assert "Number of nodes" not in terminal.screen
    assert "# on gn2, node 1:" in terminal.screen
    assert "--nnodes 2 --node-rank 1 --master-addr gn1 --job-name demo" in terminal.screen


def test_the_preview_shows_the_lines_that_are_written(folder: Path) -> None:
    arguments = ["--data", "/" + "long/" * 40]
    flags = ("--nodes", "2", "--gpus-per-node", "8", "--name", "demo", "--time", "60")
    terminal = Terminal(folder, "--kind", "slurm", *flags)
    terminal.answer("What to run", " ".join(["/t.py", *arguments]))
    terminal.answer("Write job.yaml, slurm.sbatch?", "y")
    assert terminal.end() == 0
    shown = terminal.screen.replace("\r\n", "\n")
    for name in ("job.yaml", "slurm.sbatch"):
        assert (folder / name).read_text("utf-8") in shown


def test_a_no_at_the_end_writes_nothing(folder: Path) -> None:
    terminal = Terminal(folder, "--kind", "slurm", "--nodes", "2", "--gpus-per-node", "8", "--name", "demo")
    terminal.answer("Time limit", "")
    terminal.answer("What to run", "/job/train.py")
    terminal.answer("#SBATCH --nodes=2", "n")
    assert terminal.end() == 130
    assert list(folder.iterdir()) == []


def test_what_a_flag_says_is_not_asked(folder: Path) -> None:
    terminal = Terminal(folder, "--kind", "slurm", "--nodes", "4", "--gpus-per-node", "8", "--name", "demo")
    terminal.answer("Time limit", "1:00:00")
    terminal.answer("What to run", "/job/train.py")
    terminal.answer("Write", "")
    assert terminal.end() == 0
    assert "Number of nodes" not in terminal.screen
    assert "#SBATCH --time=01:00:00" in (folder / "slurm.sbatch").read_text("utf-8")


def test_the_scheduler_that_is_installed_is_offered_first(folder: Path) -> None:
    (folder / "kubectl").touch(mode=0o755)
    terminal = Terminal(folder, programs=str(folder))
    terminal.answer("choice (kubernetes)", "1")
    terminal.answer("Name of the job", "demo")
    terminal.answer("What to run", "llamafactory-cli train x.yaml")
    terminal.answer("Write job.yaml?", "")
    assert terminal.end() == 0
    assert "start_multinode_platform.sh -- llamafactory-cli train x.yaml" in terminal.screen


@pytest.mark.parametrize("goodbye", ["\x03", "\x04"])
def test_leaving_the_dialogue_writes_nothing(folder: Path, goodbye: str) -> None:
    terminal = Terminal(folder, "--kind", "slurm")
    terminal.answer("Name of the job", goodbye)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.screen
    assert list(folder.iterdir()) == []


def test_without_a_terminal_the_missing_flags_are_named(folder: Path) -> None:
    for arguments, missing in (
        ([], ["--kind (one-node, several-nodes, slurm, kubernetes, debug, check, trouble)"]),
        (["--kind", "kubernetes"], ["--image", "--script"]),
        (["--kind", "kubernetes", "--module", "pkg.train"], ["--image"]),
        (["--kind", "debug", "--example", "taehv"], ["--nodes"]),
    ):
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 64
        assert f"no {', '.join(missing)}: expected" in done.stderr
        assert list(folder.iterdir()) == []


def run(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["init", "--directory", str(folder), *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_answer_can_be_a_flag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--target",
        "volcano",
        "--nodes",
        "2",
        "--gpus-per-node",
        "8",
        "--image",
        "a/b:1",
        "--name",
        "demo",
    ]
    code, out, _err = run(folder, capsys, *flags, "--script", "/t.py", "--", "--lr", "1e-3")
    assert code == 0
    assert f"kubectl apply -f '{folder}/volcano.yaml'" in out
    files = ["--file", f"{folder}/job.yaml", "--output", f"{folder}/volcano.yaml"]
    assert main(["job", "volcano", *files, "--check"]) == 0


def test_several_machines_get_one_command_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--kind", "several-nodes", "--nodes", "2", "--name", "demo", "--script", "/t.py"]
    code, out, _err = run(folder, capsys, *flags, "--master-addr", "192.168.1.100", "--", "--lr", "a b")
    assert code == 0
    commands = [line for line in out.splitlines() if not line.startswith("#")]
    entry = ROOT / "start_multinode_platform.sh"
    assert commands == [
        f"{entry} --nnodes 2 --node-rank {rank} --master-addr 192.168.1.100 --job-name demo --script /t.py "
        "-- --lr 'a b'"
        for rank in (0, 1)
    ]
    assert [path.name for path in folder.iterdir()] == ["job.yaml"]


def test_gpus_per_node_that_somebody_gives_are_the_processes_of_each_node(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ["--hosts", "gn1,gn2", "--gpus-per-node", "4", "--force", "--script", "/t.py"]
    code, out, _err = run(folder, capsys, *hosts, "--launcher", "torchrun")
    assert code == 0
    commands = [line for line in out.splitlines() if not line.startswith("#")]
    assert len(commands) == 2
    assert all(line.endswith(" --launcher=torchrun --nproc-per-node 4") for line in commands)
    code, out, _err = run(folder, capsys, "--kind", "one-node", *hosts[2:])
    assert out.splitlines()[-1].endswith(" --nproc-per-node 4")
    code, out, _err = run(folder, capsys, *hosts, "--nproc-per-node", "1")
    assert out.count("--nproc-per-node") == out.count("--nproc-per-node=1") == 2


def test_one_machine_needs_to_know_what_to_run_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _err = run(folder, capsys, "--kind", "one-node", "--", "bash", "train.sh")
    assert code == 0
    assert out.splitlines()[-1] == f"{ROOT / 'start_multinode_platform.sh'} -- bash train.sh"
    job = to_job(read((folder / "job.yaml").read_text("utf-8"), "job.yaml"), 60)
    assert (job.nodes, job.gpus_per_node) == (1, 0)


def test_what_exists_is_written_over_after_a_yes_so_that_no_answer_is_lost(folder: Path) -> None:
    (folder / "job.yaml").write_text("mine", encoding="utf-8")
    flags = ("--kind", "slurm", "--nodes", "2", "--gpus-per-node", "8", "--time", "60", "--script", "/t.py")
    for answer, code, text in (("", 130, "mine"), ("y", 0, "name: my-model-2")):
        terminal = Terminal(folder, *flags)
        terminal.answer("Name of the job", "")
        terminal.answer("Overwrite job.yaml?", answer)
        assert terminal.end() == code
        assert (folder / "job.yaml").read_text("utf-8").startswith(text)
    # The command that is said for later writes the file again, it does not only print it.
    again = "platform-launch job slurm --file job.yaml --output slurm.sbatch --force"
    assert again in terminal.screen.splitlines()


def test_debug_mode_lets_the_nodes_wait(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run(folder, capsys, "--kind", "debug", "--nodes", "2", "-m", "t.run", "--", "--lr", "1")
    assert code == 0
    assert "dist-launch wait" in out.splitlines()
    assert out.splitlines()[-1] == (
        f"dist-launch run {ROOT / 'start_multinode_platform.sh'} --module t.run -- --lr 1"
    )


def test_existing_files_stay_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slurm.sbatch").write_text("mine", encoding="utf-8")
    flags = ["--kind", "slurm", "--nodes", "2", "--gpus-per-node", "8", "--script", "/t.py"]
    code, _out, err = run(folder, capsys, *flags)
    assert code == 64
    assert "add --force" in err
    assert [path.name for path in folder.iterdir()] == ["slurm.sbatch"]
    assert run(folder, capsys, *flags, "--force")[0] == 0
    assert (folder / "slurm.sbatch").read_text("utf-8").startswith("#!/bin/bash")


def test_answers_that_belong_to_another_kind_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _out, err = run(folder, capsys, "--kind", "slurm", "--target", "jobset")
    assert (code, "works only with --kind kubernetes" in err) == (64, True)
    code, _out, err = run(folder, capsys, "--kind", "slurm", "--master-addr", "a")
    assert (code, "works only with --kind several-nodes" in err) == (64, True)
    code, _out, err = run(folder, capsys, "--start")
    assert (code, "--start without --hosts" in err) == (64, True)


@pytest.mark.parametrize(
    ("hosts", "what"),
    [
        ("-oProxyCommand=x", "is not a host"),
        ("gn1,gn1", "twice"),
        ("gn[1-", "is malformed"),
        ("gn1;x,gn2", "is not a host"),
        ("gn[1-3]", "--nodes 2 and 3 hosts"),
    ],
)
def test_hosts_that_are_none_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], hosts: str, what: str
) -> None:
    code, _out, err = run(folder, capsys, f"--hosts={hosts}", "--nodes", "2", "--start")
    assert code in (64, 66)
    assert what in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "keys"),
    [
        ("train.py --lr 1", {"script": "train.py", "arguments": ["--lr", "1"]}),
        ("/w/train.py", {"script": "/w/train.py"}),
        ("python3 train.py 'a b'", {"script": "train.py", "arguments": ["a b"]}),
        ("python -m pkg.train x", {"module": "pkg.train", "arguments": ["x"]}),
        ("-m pkg.train", {"module": "pkg.train"}),
        ("bash train.sh", {"arguments": ["bash", "train.sh"]}),
        ("torchrun train.py", {"arguments": ["torchrun", "train.py"]}),
    ],
)
def test_what_to_run_is_read_as_it_is_typed(answer: str, keys: dict[str, object]) -> None:
    (question,) = [one for one in questions("slurm", Path()) if one.flag == "--script"]
    assert question.read(answer) == keys


@pytest.mark.parametrize("answer", ["", "python", "--lr 1", "-m"])
def test_an_answer_that_names_nothing_to_run_is_refused(answer: str) -> None:
    (question,) = [one for one in questions("slurm", Path()) if one.flag == "--script"]
    with pytest.raises(InputError, match="nothing to run"):
        question.read(answer)


@pytest.mark.parametrize("kind", ["check", "trouble"])
def test_menu_names_commands_that_exist_for_testing_and_for_trouble(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    code, out, _err = run(folder, capsys, "--kind", kind)
    commands = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert code == 0
    assert len(commands) > 3
    assert all(program == "platform-launch" and name in COMMANDS for program, name, *_ in commands)
    launches = [words for words in commands if words[1] in ("run", "simulate")]
    assert all({"--script", "--example"} & set(words) for words in launches), "a launch names what to run"
    assert list(folder.iterdir()) == []
