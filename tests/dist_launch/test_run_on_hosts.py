"""dist-launch run on four hosts: environment, arguments, output, failure, interruption."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.dist_launch.lab import DIST_LAUNCH, Node, eventually, jobs_on, requires_ssh, script
from tests.lab.netns import requires_netns
from tests.lab.waiting import LIMIT_S

pytestmark = [requires_netns, requires_ssh]

HOSTILE = [
    "two words",
    "it's",
    'say "x"',
    "line\nend",
    "$(touch /tmp/owned)",
    "`id`",
    "*",
    "",
    "-n",
    "\\n",
    "é;&|",
]


def no_jobs(cluster: list[Node]) -> bool:
    return not any(jobs_on(node) for node in cluster)


def test_every_node_runs_with_the_variables_of_its_own_platform(cluster: list[Node], tmp_path: Path) -> None:
    job = script(
        tmp_path / "job.sh",
        'echo "$RANK of $WORLD_SIZE to $MASTER_ADDR $NCCL_SOCKET_IFNAME"',
    )
    done = cluster[0].dist_launch("run", job)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank-{n}] {n} of 4 to node0 =eth0" for n in range(4)]


def test_arguments_and_values_arrive_as_they_were_typed(cluster: list[Node], tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(folder)"
    folder.mkdir()
    job = script(
        folder / "a job's.py",
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['VALUE'], os.getcwd()]))\n",
    )
    done = cluster[0].dist_launch(
        "run", "--env", f"VALUE={HOSTILE[3]}{HOSTILE[4]}", job, *HOSTILE, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert json.loads(line.partition("] ")[2]) == [HOSTILE, HOSTILE[3] + HOSTILE[4], str(folder)]
    assert not Path("/tmp/owned").exists()


def test_a_command_is_read_by_the_nodes_shell_as_with_ssh(cluster: list[Node]) -> None:
    for nodes, expected in (
        ("0,2", ["[rank-0] a", "[rank-0] node0", "[rank-2] a", "[rank-2] node2"]),
        ("rank-1", ["a", "node1"]),
    ):
        done = cluster[0].dist_launch("ssh", nodes, "echo a; hostname")
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, expected), done.stderr
        done = cluster[0].dist_launch("ssh", nodes, "test", "two words", "=", "x")
        assert done.returncode == 2  # as ssh does it, the node's shell sees four words


def test_the_last_line_says_how_it_ended_and_how_long_it_took(cluster: list[Node], tmp_path: Path) -> None:
    done = cluster[0].dist_launch("run", script(tmp_path / "job.sh", "true"))
    first = r"[0-9:]{8} \[SUCCESS\] succeeded on 4 of 4 nodes after (\d+ min )?\d+ s \[nodes-run-finished\]"
    assert re.fullmatch(first, done.stderr.splitlines()[-1])
    done = cluster[0].dist_launch("run", script(tmp_path / "job.sh", "[ $RANK = 2 ] && exit 7; sleep 6000"))
    words = r"failed after (\d+ min )?\d+ s; first on rank-2 \(node2, 10\.213\.0\.3\); exit code 7"
    last = rf"[0-9:]{{8}} \[ERROR\] {words} \[nodes-run-failed exit_code=7\]"
    assert re.fullmatch(last, done.stderr.splitlines()[-1])


def test_a_run_on_some_nodes_says_which_variables_stay(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "echo $WORLD_SIZE")
    done = cluster[0].dist_launch("run", "--nodes", "0,2", job)
    assert sorted(done.stdout.splitlines()) == ["[rank-0] 4", "[rank-2] 4"]
    assert "on 2 of 4 nodes, but RANK, WORLD_SIZE, MASTER_ADDR still describe all 4" in done.stderr
    assert "succeeded on 2 of 4 nodes" in done.stderr
    planned = cluster[0].dist_launch("run", "--nodes", "0,2", "--env", "WORLD_SIZE=2", "--dry-run", job)
    assert "on 2 of 4 nodes, but RANK, MASTER_ADDR still describe all 4" in planned.stdout


def test_flags_of_ssh_may_follow_the_script_as_the_seed_has_them(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", 'printf "%s|" "$@"; echo')
    done = cluster[0].dist_launch(
        "run", "--nodes", "1", job, "--lr", "1", "--ssh-port", "2025", "--name", "x"
    )
    assert done.stdout == "[rank-1] --lr|1|--name|x|\n"
    assert "SSH port 2025 (--ssh-port)" in done.stderr
    done = cluster[0].dist_launch("run", "--nodes", "1", "--", job, "--ssh-port", "7")
    assert done.stdout == "[rank-1] --ssh-port|7|\n"


def test_the_ssh_port_of_the_environment_is_used_and_said(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "echo done")
    done = cluster[0].dist_launch("run", job, env={"SSH_PORT": "2026"})
    assert done.returncode == 75
    assert "SSH port 2026 (SSH_PORT)" in done.stderr
    assert "started nowhere: 3 of 4 nodes" in done.stderr
    assert "nothing listens at 10.213.0.2:2026" in done.stderr
    assert "done" not in done.stdout


def test_a_key_that_the_nodes_do_not_accept_is_named(cluster: list[Node], tmp_path: Path) -> None:
    job, wrong, text = script(tmp_path / "job.sh", "echo done"), tmp_path / "wrong", tmp_path / "text"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)
    text.write_text("no key")
    done = cluster[0].dist_launch("run", "--ssh-key", wrong, job)
    assert done.returncode == 75
    assert f"10.213.0.2:2025 refused the key {wrong} for user root" in done.stderr
    for path, problem in ((text, "Invalid private key"), (tmp_path / "none", "No such file or directory")):
        done = cluster[0].dist_launch("run", "--ssh-key", path, job)
        assert done.returncode == 66
        assert f"the private key {path} (--ssh-key) cannot be used: {problem}" in done.stderr
    assert cluster[0].dist_launch("run", job).stdout.count("done") == 4


def test_the_first_failure_stops_the_others_and_its_code_is_ours(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "echo start; [ $RANK = 2 ] && exit 7; sleep 6000")
    done = cluster[0].dist_launch("run", job)  # within its limit
    assert done.returncode == 7
    assert "rank-2 (node2, 10.213.0.3): ended with exit code 7; stopping the other 3" in done.stderr
    assert no_jobs(cluster)


def test_keep_going_lets_the_others_finish(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "[ $RANK = 2 ] && exit 7; sleep 1; echo finished")
    done = cluster[0].dist_launch("run", "--keep-going", job)
    assert (done.returncode, done.stdout.count("finished")) == (7, 3)


def test_each_node_has_a_log_of_its_own_with_both_streams(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "echo out $RANK; echo err $RANK >&2")
    logs = tmp_path / "logs"
    done = cluster[0].dist_launch("run", "--name", "two.words", "--log-dir", logs, job)
    assert "[rank-1] out 1\n" in done.stdout
    assert "[rank-1] err 1\n" in done.stderr
    for rank in range(4):
        (log,) = logs.glob(f"train_two.words_node{rank}_*.log")
        assert sorted(log.read_text().splitlines()) == [f"err {rank}", f"out {rank}"]
        assert log.stat().st_mode & 0o077 == 0


def test_identical_lines_are_folded_on_request(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", "echo same; [ $RANK = 3 ] && echo other; true")
    done = cluster[0].dist_launch("run", "--fold", job)
    assert sorted(done.stdout.splitlines()) == ["[rank-0-3] same", "[rank-3] other"]


def test_much_output_loses_no_line_and_mixes_none(cluster: list[Node], tmp_path: Path) -> None:
    job = script(
        tmp_path / "job.py",
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "sys.stdout.write(''.join(f'{rank} {n} ' + 'x' * 80 + chr(10) for n in range(60000)))\n",
    )
    done = cluster[0].dist_launch("run", job)
    assert done.returncode == 0, done.stderr
    counts = [0] * 4
    for line in done.stdout.splitlines():
        found = re.fullmatch(r"\[rank-(\d)\] (\d) (\d+) x{80}", line)
        assert found is not None, line
        assert found[1] == found[2]
        assert int(found[3]) == counts[int(found[1])]
        counts[int(found[1])] += 1
    assert counts == [60000] * 4


def test_a_script_is_brought_along_with_its_folder(cluster: list[Node], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "data").write_text("carried")
    job = script(source / "job.sh", 'cat inner/data; echo " to $PWD"')
    done = cluster[0].dist_launch("run", "--copy", "--nodes", "1,3", job, cwd=source)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[rank-{rank}] carried to {cluster[rank].state}/copies/default" for rank in (1, 3)
    ]
    assert not list(cluster[0].state.glob("copy.*"))


def test_a_dry_run_says_what_would_run_and_runs_nothing(cluster: list[Node], tmp_path: Path) -> None:
    job = script(tmp_path / "job.sh", f"touch {shlex.quote(str(tmp_path))}/ran")
    done = cluster[0].dist_launch("run", "--dry-run", "--nodes", "1-2", "--env", "A=b c", job, "d e")
    assert done.returncode == 0
    assert f"command:   bash {job} 'd e'" in done.stdout
    assert "A='b c'" in done.stdout
    assert "rank-1 (node1, 10.213.0.2)" in done.stdout
    assert "rank-3" not in done.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nowhere/train.sh"], 66, "there is no script '/nowhere/train.sh'"),
        (["--nodes", "7", "job.sh"], 64, "no node 7 in this cluster of 4"),
        (["--env", "1A=b", "job.sh"], 64, "expected NAME=VALUE"),
        (["--name", "../x", "job.sh"], 64, "expected letters, digits"),
        (
            ["--ssh-key", "/nowhere/key", "job.sh"],
            66,
            "the private key /nowhere/key (--ssh-key) cannot be used",
        ),
        (["windows.sh"], 66, "has Windows line endings"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    cluster: list[Node], tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    script(tmp_path / "job.sh", "echo done")
    (tmp_path / "windows.sh").write_bytes(b"echo done\r\n")
    done = cluster[0].dist_launch("run", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "done" not in done.stdout


def test_only_rank_0_can_run(cluster: list[Node], tmp_path: Path) -> None:
    done = cluster[2].dist_launch("run", script(tmp_path / "job.sh", "echo done"))
    assert done.returncode == 64
    assert "this node is not rank 0" in done.stderr


def test_without_a_shared_file_system_a_script_starts_nowhere_unless_it_is_copied(
    cluster: list[Node], tmp_path: Path
) -> None:
    # A mount that only the command itself sees, like a folder of one container.
    inside = f"mount -t tmpfs none {tmp_path} && cd {tmp_path} && echo 'echo here' > job.sh && exec \"$@\""
    for options, code, said in ((), 66, "started nowhere: 4 of 4 nodes"), (("--copy",), 0, ""):
        command = ["sh", "-c", inside, "sh", *DIST_LAUNCH, "run", *options, "job.sh"]
        done = cluster[0].host.run(command, env=cluster[0].env)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert done.stdout.count("here") == (0 if code else 4)


def test_ctrl_c_stops_the_job_everywhere_and_a_second_run_works(cluster: list[Node], tmp_path: Path) -> None:
    traps = f"trap 'echo saved; exit 0' TERM; touch {tmp_path}/$RANK.started; sleep 1000 & wait"
    job = script(tmp_path / "job.sh", traps)
    process = cluster[0].start("run", job, env={"PLATFORM_LAUNCH_LANG": "zh"})
    eventually("the job starts", lambda: len(list(tmp_path.glob("*.started"))) == 4)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert output.count("saved") == 4
    assert output.count("：正在停止作业") == 4, "the lines of each node are in the language of the command"
    assert no_jobs(cluster)
    assert (
        cluster[0].dist_launch("run", script(tmp_path / "again.sh", "echo again")).stdout.count("again") == 4
    )


def test_a_second_ctrl_c_kills_what_does_not_listen(cluster: list[Node], tmp_path: Path) -> None:
    deaf = f"trap '' TERM INT; touch {tmp_path}/$RANK.started; while true; do sleep 1; done"
    process = cluster[0].start("run", script(tmp_path / "job.sh", deaf))
    eventually("the job starts", lambda: len(list(tmp_path.glob("*.started"))) == 4)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert no_jobs(cluster)


def test_a_run_that_is_killed_takes_its_job_along(cluster: list[Node], tmp_path: Path) -> None:
    process = cluster[0].start("run", script(tmp_path / "job.sh", "sleep 1000"))
    eventually("the job starts", lambda: all(jobs_on(node) for node in cluster))
    process.kill()
    process.communicate(timeout=LIMIT_S)
    eventually("the job ends everywhere", lambda: no_jobs(cluster))


def test_two_runs_at_once_need_two_names(cluster: list[Node], tmp_path: Path) -> None:
    long, short = script(tmp_path / "long.sh", "sleep 1000"), script(tmp_path / "short.sh", "echo done")
    first = cluster[0].start("run", long)
    eventually("the job starts", lambda: all(jobs_on(node) for node in cluster))
    refused = cluster[0].dist_launch("run", short)
    assert refused.returncode == 64
    assert f"job 'default' runs already: {long}" in refused.stderr
    refused = cluster[0].dist_launch("run", short, env={"PLATFORM_LAUNCH_LANG": "zh"})
    assert f"作业 'default' 已在运行：{long}" in refused.stderr
    beside = cluster[0].dist_launch("run", "--name", "beside", short)
    assert beside.stdout.count("done") == 4
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=LIMIT_S)
    assert first.returncode == 143


def test_a_node_that_is_lost_during_a_run_is_named_and_the_others_stop(
    cluster: list[Node], tmp_path: Path
) -> None:
    process = cluster[0].start("run", script(tmp_path / "job.sh", "sleep 1000"))
    eventually("the job starts", lambda: all(jobs_on(node) for node in cluster))
    sessions = subprocess.run(
        ["ip", "netns", "pids", cluster[3].host.namespace], capture_output=True, text=True
    )
    for pid in map(int, sessions.stdout.split()):
        with suppress(OSError):  # one ends with the other
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sshd: root"):
                os.kill(pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75
    assert "rank-3 (node3, 10.213.0.4): the connection was lost" in output
    eventually("the job ends everywhere", lambda: no_jobs(cluster))
