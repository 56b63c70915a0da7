"""Tracebacks as logs really hold them: interleaved, prefixed, glued to progress bars, drawn."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain, progress, uncaught

RENDEZVOUS = "distributed/elastic/rendezvous/c10d_rendezvous_backend.py"


def test_interleaved_ranks_are_put_together_again(explain_text: Explain) -> None:
    one = uncaught("ValueError: of rank three", "[rank3]: ", line=33).splitlines(keepends=True)
    two = uncaught("KeyError: 'of rank five'", "[rank5]: ", line=55).splitlines(keepends=True)
    verdict = explain_text("".join(line for pair in zip(one, two, strict=True) for line in pair))
    assert verdict.exception is not None
    assert (verdict.title, verdict.where.rank, verdict.exception.line) == ("ValueError: of rank three", 3, 33)


@pytest.mark.parametrize(
    "prefix", ["worker-1: ", "worker-1  | ", "4: ", "[default0]:", "ERROR 03-02 [a.py:7] "]
)
def test_traceback_behind_a_prefix_on_each_line_is_read(explain_text: Explain, prefix: str) -> None:
    verdict = explain_text(progress(3, prefix) + uncaught("ValueError: bad", prefix, line=77))
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("ValueError: bad", 77)


def test_traceback_glued_to_a_progress_bar_is_read(explain_text: Explain) -> None:
    bars = "".join(f"\r {n}%|###       | {n}/100 [00:01<00:09, 9.1it/s]" for n in range(9))
    verdict = explain_text(bars + uncaught("ValueError: bad", line=77))
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("ValueError: bad", 77)
    assert verdict.evidence[0].line == 8


def test_rich_traceback_is_read(explain_text: Explain) -> None:
    verdict = explain_text(
        "╭─────────────── Traceback (most recent call last) ───────────────╮\n"
        "│ /workspace/train.py:120 in <module>                             │\n"
        "│                                                                 │\n"
        "│ ❱ 120 main()                                                    │\n"
        "│ /workspace/train.py:88 in forward                               │\n"
        "╰─────────────────────────────────────────────────────────────────╯\n"
        "ValueError: bad\n"
    )
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("ValueError: bad", 88)


def test_box_of_rich_that_ends_below_a_name_that_it_broke_is_a_traceback_that_was_cut(
    explain_text: Explain,
) -> None:
    verdict = explain_text(
        "╭─────────────── Traceback (most recent call last) ───────────────╮\n"
        "│ /opt/env/lib/python3.11/site-packages/jax/_src/bridge.py:879 in │\n"
        "│ backends                                                        │\n"
        "│   876 │   priority = -1000                                      │\n"
    )
    place = "/opt/env/lib/python3.11/site-packages/jax/_src/bridge.py:879 in backends"
    assert (verdict.cause, verdict.details) == ("traceback_cut", {"innermost": place})


def test_traceback_of_which_a_page_took_the_indentation_off_is_read(explain_text: Explain) -> None:
    lines = [line.strip() for line in uncaught("RuntimeError: bad").splitlines()]
    lines[4] = "self.comm: Comm = self.library.open("
    verdict = explain_text("\n".join(lines[1:]) + "\n")
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("RuntimeError: bad", 88)


def test_frame_of_a_library_is_not_the_users_line(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("ValueError: bad"))
    assert verdict.exception is not None
    assert (verdict.exception.file, verdict.exception.line) == ("/workspace/train.py", 88)


def test_message_quoted_in_a_source_line_is_no_evidence(explain_text: Explain) -> None:
    log = uncaught("ValueError: bad").replace("x = self.conv(x)", 'raise X("CUDA out of memory")')
    assert explain_text(log).title == "ValueError: bad"


def test_traceback_cut_inside_of_a_launcher_tells_that_a_process_ended(explain_text: Explain) -> None:
    begun = uncaught("x", file="/env/lib/python3.11/site-packages/torch/distributed/run.py").splitlines()[:5]
    verdict = explain_text("\n".join(begun) + "\n")
    assert (verdict.kind, verdict.cause, verdict.evidence[0].line) == ("unknown", None, 4)
    assert "launcher" in verdict.meaning
    assert explain_text("\n".join(begun) + "\n" + uncaught("ValueError: bad")).title == "ValueError: bad"
    asking = [line.replace("distributed/run.py", RENDEZVOUS) for line in begun]
    assert explain_text("\n".join(asking) + "\n").cause == "master_unreachable"


def test_line_of_code_of_a_twin_is_no_part_of_a_message(explain_text: Explain) -> None:
    opening = 'Traceback (most recent call last):\n  File "/workspace/train.py", line 24, in <module>\n'
    ending = '    print("on: " + device)\nTypeError: can only concatenate str (not "device") to str\n'
    verdict = explain_text(opening * 3 + ending * 3)
    assert verdict.title == 'TypeError: can only concatenate str (not "device") to str'


def test_code_in_a_box_of_which_a_part_is_left_is_no_error(explain_text: Explain) -> None:
    verdict = explain_text(
        "│ C:\\tools\\launch.py:6 │\n│ 04 in start   │\n│   603 │   │   try:  │\n"
        "│ ❱ 604 │   │   │   run(args) │\n"
        "│   605 │   │   except Exception: │\n"
    )
    assert verdict.kind == "nothing"


def test_traceback_that_a_torn_frame_ends_is_cut_off_there(explain_text: Explain) -> None:
    cut = uncaught("ValueError: bad").splitlines(keepends=True)[:5]
    verdict = explain_text("".join(cut) + '  File "/env/lib/pyth')
    assert (verdict.kind, verdict.cause) == ("suspect", "traceback_cut")


def test_blanks_after_an_exception_without_a_message_are_no_text(explain_text: Explain) -> None:
    prefix = "2026-11-21 03:04:05,123 - Trainer - INFO - [rank2]: "
    frame = (
        '  File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/loader.py", line 9, in step'
    )
    lines = ["    result = func()", frame, "    assert metadata is not None", "AssertionError"]
    verdict = explain_text("".join(f"{prefix}{line}{' ' * 20}\n" for line in lines))
    assert (verdict.advice, verdict.where.rank) == ("checkpoint_metadata_missing", 2)


def test_indent_of_another_process_does_not_make_its_code_part_of_a_message(explain_text: Explain) -> None:
    one, code = uncaught("ValueError: the adapter's modules are not in this model"), "    raise ValueError(\n"
    torn = (
        one.rstrip("\n")
        + "    \n"
        + code.lstrip()
        + "ValueError: the adapter's modules are not in this model\n"
    )
    assert explain_text(torn).title == "ValueError: the adapter's modules are not in this model"


def test_rank_whose_traceback_a_paste_begins_with_is_named(explain_text: Explain) -> None:
    frames = '  File "/app/save.py", line 40, in plan\n    return self.planner.create()\n'
    head = "Traceback (most recent call last): (RANK {})\n"
    ended = "KeyError: 'layers.7'\n"
    verdict = explain_text(head.format(5) + frames + ended + head.format(6) + frames + ended)
    assert (verdict.title, str(verdict.where)) == ("KeyError: 'layers.7'", "rank 5")
