"""Logs copied out of a terminal, which cuts lines at its width."""

from __future__ import annotations

import pytest

from tests.why.conftest import LOGS, Explain, progress, uncaught

WIDTH = 100
RAY = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
    "To troubleshoot the problem, check the logs for the dead worker. "
    "RayTask ID: ffffffffffffffffb45df1d7796fb62aba30b3e5 "
    "Worker ID: 5ed9f46ad3df8e98e49005e308d12449f3e91214437c0150a757182b "
    "Worker IP address: 10.0.1.75 Worker port: 10230"
)


def as_shown(text: str, width: int = WIDTH) -> str:
    """The lines of a text as a terminal shows them."""
    return "".join(
        f"{line[at : at + width]}\n"
        for line in text.splitlines()
        for at in range(0, max(1, len(line)), width)
    )


def test_line_that_a_terminal_cut_tells_its_place(explain_text: Explain) -> None:
    whole = f"step 1 | loss 2.9\n{RAY}\n(head) done\n"
    verdict = explain_text(as_shown(whole))
    assert (verdict.cause, str(verdict.where)) == ("ray_actor_died", "host 10.0.1.75")
    assert verdict.evidence[0].line == 2
    assert explain_text(whole).where == verdict.where


def test_line_after_a_cut_one_keeps_its_number(explain_text: Explain) -> None:
    whole = f"{'x' * 350}\nstep 1 | loss 2.9\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    shown = as_shown(whole)
    verdict = explain_text(shown)
    assert verdict.cause == "ecc"
    assert shown.splitlines()[verdict.evidence[0].line - 1].startswith("RuntimeError")


def test_lines_of_equal_length_stay_what_they_are(explain_text: Explain) -> None:
    rows = "".join(f"{f'step {n} | loss 2.9 ':<96}{n:04d}\n" for n in range(50))
    error = "error: [Errno 28] No space left on device: '/data/checkpoints/step_100.pt'"
    verdict = explain_text(f"{rows}{error}\n{progress(3)}")
    assert verdict.cause == "disk_full"
    assert verdict.evidence[0].text.startswith(error)


def test_lines_of_hosts_in_turn_are_not_one(explain_text: Explain) -> None:
    said = [f"gn{1 + n % 2:02d}: step {n // 2:4d} | loss 2.9" for n in range(50)]
    rows = "".join(f"{line:<99}.\n" for line in said)
    verdict = explain_text(f"{rows}gn01: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert (verdict.cause, verdict.evidence[0].line) == ("ecc", 51)


def test_a_line_that_comes_again_is_not_one_that_a_terminal_cut(explain_text: Explain) -> None:
    missing = "slurmstepd: error: execve(): /data/./train_hello: No such file or directory"
    ended = "srun: error: gn81: task {0}: Exited with exit code 2"
    text = "\n".join(f"{missing}\n{ended.format(task)}" for task in range(4))
    assert explain_text(f"{text}\n").evidence[0].text == missing


def test_summary_of_torchrun_that_lost_its_line_ends_still_tells_rank_and_signal(
    explain_text: Explain,
) -> None:
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\n"
    head += "Root Cause (first observed failure) :\n[0]:\ntime\nhost\n"
    for entry in (
        "rank2 (local rank: 2)exitcode: -9 (pid: 3671)error file: <N/A>\n",
        "rank : 2 (local_rank: 2) exitcode : -9 (pid: 3671)\n",
        "rank: 2 (local_rank:2) exit code: -9 (pid:3671)\n",
    ):
        verdict = explain_text(head + entry)
        assert (verdict.cause, verdict.where.rank) == ("killed", 2)


def test_lines_of_several_hosts_that_were_glued_together_are_told_apart(explain_text: Explain) -> None:
    verdict = explain_text(
        "(node list)10.16.2.18: bash: line 0: cd: /data/src: No such file or directory 10.16.2.18: bash: "
        "/opt/env/bin/python: No such file or directory pdsh@login: 10.16.2.18: ssh exited with exit code 1\n"
    )
    assert (verdict.cause, verdict.where.host) == ("command_missing", "10.16.2.18")


def test_apostrophes_are_no_quotes_that_a_terminal_tore(explain_text: Explain) -> None:
    error = "FATAL:   Couldn't determine user account information: user: unknown userid 20417"
    verdict = explain_text(
        "WARNING: Could not lookup the current user's information: user: unknown userid 20417\n"
        f"{error}\nsrun: error: gn-12: tasks 0-3: Exited with exit code 255\n"
    )
    assert (verdict.cause, verdict.where.host) == ("container_user", "gn-12")
    assert (verdict.evidence[0].line, verdict.evidence[0].text) == (2, error)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *(("image_no_space", 72), ("slurm_layout", 72), ("jax_tasks_silent", 72), ("ib_status_4", 72)),
        *(
            ("home_of_rank", 80),
            ("lazy_import_of_extension", 80),
            ("enroot_hook_crashed", 80),
            ("watchdog_one_rank_alone", 120),
            ("hang_told_by_heartbeats", 100),
        ),
    ],
)
def test_what_a_terminal_cut_tells_the_same(explain_text: Explain, name: str, width: int) -> None:
    text = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    told, cut = explain_text(text), explain_text(as_shown(text, width))
    assert (cut.cause, cut.where) == (told.cause, told.where)


def test_what_begins_a_line_of_its_own_is_no_rest_of_the_one_above(explain_text: Explain) -> None:
    odd = uncaught("RuntimeError: the shard that this rank was given holds an odd number of documents")
    for below in (
        "srun: error: gn3: task 3: Killed",
        "[2026-01-02 03:04:05] CUDA out of memory",
        "worker: error: CUDA out of memory",
    ):
        verdict = explain_text(f"{odd}{below}\n")
        assert verdict.title.endswith("an odd number of documents"), below


@pytest.mark.parametrize("below", ["Broken pipe", "Terminated", "double free or corruption (!prev)"])
def test_the_longest_line_of_a_log_need_not_go_on_in_the_one_below(explain_text: Explain, below: str) -> None:
    odd = uncaught("ValueError: the tokenizer of this corpus holds an odd number of merges which nobody had")
    verdict = explain_text(f"{odd}{below}\n")
    assert (verdict.cause, verdict.title.endswith(" nobody had")) == ("python_exception", True)


def test_what_a_program_says_does_not_go_on_in_a_command_as_long_as_a_terminal(explain_text: Explain) -> None:
    command = "$ mpirun --hostfile nodes.txt -np 16 python fit.py --epochs 90 --batch 512 --amp"
    assert len(command) == 80
    verdict = explain_text(f"{command}\nssh: Could not resolve hostname gn3: Name or service not known\n")
    assert (verdict.cause, verdict.evidence[0].line) == ("ssh_name_unknown", 2)
