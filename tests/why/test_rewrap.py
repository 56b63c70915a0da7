"""Logs that a mail or an editor wrapped between words."""

from __future__ import annotations

import textwrap

import pytest

from platform_launch.why.lines.rewrap import rewrapped
from tests.why.conftest import LOGS, Explain

WRAPPED = [
    *((name, 72) for name in ("megatron_nan", "ray_memory_pressure", "tensorflow_gpu_taken")),
    *((name, width) for name in ("port_in_use", "shape_mismatch", "module_shadowed") for width in (72, 80)),
    *((name, 100) for name in ("jax_tasks_silent", "store_lost_on_one_line", "tensorflow_gpu_taken")),
    *((name, 120) for name in ("nccl_heartbeat_two_ranks", "watchdog_far_behind")),
    # A single message, or its rest alone, which says less.
    *(
        ("gaudi_graph", 72),
        ("index_cache_torn", 80),
        ("ucx_docker_bridge", 80),
        ("checkpoint_key_absent", 80),
    ),
    *(
        ("aborted_one_rank", 100),
        ("enroot_mount_refused", 100),
        ("killed_one_rank", 120),
        ("hub_head_retried", 120),
    ),
]
TABLE = """\
NAME                     READY   STATUS             RESTARTS      AGE
resnet-7f21-launcher-0   1/1     Running            0             6m10s
resnet-7f21-worker-0     0/1     CrashLoopBackOff   5 (41s ago)   6m10s
resnet-7f21-worker-1     1/1     Running            0             6m10s
"""


def wrap(text: str, width: int) -> str:
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join("\n".join(of_one) for of_one in lines)


@pytest.mark.parametrize(("name", "width"), WRAPPED)
def test_what_a_mail_wrapped_tells_the_same(explain_text: Explain, name: str, width: int) -> None:
    text = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    told, wrapped = explain_text(text), explain_text(wrap(text, width))
    assert (wrapped.cause, wrapped.where) == (told.cause, told.where)


def test_a_line_that_was_not_wrapped_leaves_the_others_to_be_mended() -> None:
    heading = (
        "what the job of last night printed on all of its nodes, as far as it was kept on the disk of " * 2
    )
    text = wrap("this is one long line of words " * 12 + "\nend", 72)
    joined = rewrapped([line.encode() for line in f"{heading.strip()}.\n\n{text}".split("\n")])
    assert joined[2].count(b"words") == 12


def test_lines_behind_the_tag_of_their_writer_stay_apart() -> None:
    frames = [
        f'[1,8]<stdout>:  File "/opt/env/lib/python3.9/{"x" * n}.py", line 7, in run' for n in range(12)
    ]
    lines = [
        line.encode() for frame in frames for line in (frame, "[1,8]<stdout>:    return self.inner(a, b)")
    ]
    assert rewrapped(lines) is lines


def test_a_word_broken_behind_its_hyphen_is_whole_again() -> None:
    line = "a kill of the out-of-memory handler came to a long-running process at last " * 5
    lines = textwrap.wrap(line, 72, break_on_hyphens=True)
    assert any(one.endswith("-") for one in lines)
    assert rewrapped([one.encode() for one in lines])[0].decode() == line.strip()


def test_a_line_keeps_its_number() -> None:
    lines = wrap("loading the model now\n" + "this is one long line of words " * 12 + "\nend", 72).split("\n")
    joined = rewrapped([line.encode() for line in lines])
    assert len(joined) == len(lines)
    assert (joined[0], joined[-1]) == (b"loading the model now", b"end")
    assert joined[1].count(b"words") == 12


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        "\n".join(
            f"INFO the epoch {n} of this training ended with a loss of 0.{n:03} on node gn{n:02}"
            for n in range(9)
        ),
        "one line of words that is as long as others are in this text, and goes\non once\n",
    ],
)
def test_lines_of_their_own_stay_apart(text: str) -> None:
    lines = [line.encode() for line in text.split("\n")]
    assert rewrapped(lines) == lines
