"""What is said of an exception that no signature knows: all of its message, who raised it, what to do."""

from __future__ import annotations

import re

import pytest

from platform_launch.console import languages
from platform_launch.why.lines.line import parse
from platform_launch.why.messages.exception_rules import ExceptionRule, filled, rule_of, rules
from platform_launch.why.messages.exceptions import Raised, TracebackFrame
from platform_launch.why.messages.signatures import catalogue
from tests.why.conftest import Explain, uncaught
from tests.why.corpus import examples

ALL = [(rule, tuple(examples("rules")[rule.id])) for rule in rules()]


def raised(example: tuple[str, ...]) -> Raised:
    """Make an exception of an example's lines; one that begins with / is the file and the code."""
    frames: tuple[TracebackFrame, ...] = ()
    if example[0].startswith("/"):
        files, _, code = example[0].partition(": ")
        frames = tuple(TracebackFrame(file, 7, "f", code) for file in files.split(" > "))
        example = example[1:]
    name, _, message = example[0].partition(": ")
    more = [parse(number, line.encode()) for number, line in enumerate(example[1:], 2)]
    return Raised(name, message, parse(1, example[0].encode()), frames=frames, more=more)


@pytest.mark.parametrize(("rule", "example"), ALL, ids=[rule.id for rule, _ in ALL])
def test_example_is_answered_by_its_own_rule_with_all_words_filled_in(
    rule: ExceptionRule, example: tuple[str, ...]
) -> None:
    found = rule_of(raised(example))
    assert found is not None
    assert found[0].id == rule.id
    texts = [filled(text, found[1], to) for text in (rule.meaning, rule.fix) for to in ("en", "zh")]
    assert not [text for text in texts if re.search(r"\{\w+\}|…", text)]


def test_no_signature_hides_a_rule() -> None:
    """Rules are asked only of exceptions that no signature knows."""
    hidden = {
        rule.id: found.signature.id for rule, example in ALL if (found := catalogue().match(said(example)))
    }
    assert hidden == {}


def said(example: tuple[str, ...]) -> str:
    return next(line for line in example if not line.startswith("/"))


@pytest.mark.parametrize(
    ("wrong", "example"),
    [
        ("assertion_of_sizes", ("/a/t.py: assert dist.is_initialized(), 'see //x.org'", "AssertionError: s")),
        ("assertion_of_sizes", ("/a/t.py: assert tokens, 'bad %s' % name", "AssertionError: bad x")),
        ("assertion_of_sizes", ("/a/t.py: assert tokens, ('bad %s'", "AssertionError: bad x")),
        ("assertion_of_sizes", ("/a/t.py: assert model_parallel_is_initialized()", "AssertionError")),
        ("value_not_finite", ("ValueError: cannot convert float NaN to integer",)),
        ("value_not_finite", ("ValueError: Input X contains NaN.",)),
        ("waited_in_vain", ("asyncio.exceptions.CancelledError",)),
        ("no_gpu_seen", ("RuntimeError: no GPU memory pool was found",)),
        ("variable_by_name", ("/a/t.py: width = cfg['BACKBONE_WIDTH']", "KeyError: 'BACKBONE_WIDTH'")),
        ("not_a_number", ("OverflowError: Python int too large to convert to C long",)),
        ("file_ends_early", ("/usr/lib/python3.11/multiprocessing/connection.py", "EOFError")),
        ("file_ends_early", ("EOFError: EOF when reading a line",)),
        ("device_type_unknown", ("RuntimeError: Expected one of cpu at start of device string: gpu",)),
        ("out_of_range", ("RuntimeError: Timed out: waited more than 30 s",)),
    ],
)  # fmt: skip
def test_rule_does_not_take_what_only_sounds_like_its_case(wrong: str, example: tuple[str, ...]) -> None:
    found = rule_of(raised(example))
    assert found is None or found[0].id != wrong


def test_ids_are_unique_and_each_has_an_example() -> None:
    assert len({rule.id for rule in rules()}) == len(rules())
    assert examples("rules").keys() == {rule.id for rule in rules()}


def test_a_library_that_raised_is_named_with_its_place_and_line_of_code(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("ValueError: the plan is odd", "[rank3]: "))
    code = verdict.exception
    assert code is not None
    assert (code.file, code.line) == ("/workspace/train.py", 88)
    assert (code.package, code.innermost) == ("torch", "torch/nn/module.py:1 in _call_impl")
    assert code.code == "return forward_call(*args)"
    assert (verdict.advice, verdict.where.rank) == ("raised_by_package", 3)
    assert "torch" in verdict.meaning


def test_message_of_several_lines_is_told_whole(explain_text: Explain) -> None:
    log = uncaught("ValueError: 2 fields are wrong:\n  width: too small\n  height: too big")
    verdict = explain_text(log + "wandb: waiting\n")
    assert verdict.title == "ValueError: 2 fields are wrong: width: too small height: too big"
    assert verdict.exception is not None
    assert verdict.exception.message.splitlines()[1:] == ["width: too small", "height: too big"]


def test_asserted_line_stands_for_a_message(explain_text: Explain) -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/workspace/train.py", line 9, in <module>\n'
        "    assert args.batch % world_size == 0\n"
        "AssertionError\n"
    )
    verdict = explain_text(log)
    assert verdict.exception is not None
    assert verdict.exception.code == "assert args.batch % world_size == 0"
    assert verdict.advice == "assertion_of_sizes"


LOOKUP = (
    "Traceback (most recent call last):\n"
    '  File "/workspace/registry.py", line 9, in find\n'
    "    return KINDS[name]\n"
    "KeyError: 'round'\n"
    "\n"
    "During handling of the above exception, another exception occurred:\n"
    "\n"
    "Traceback (most recent call last):\n"
    '  File "/workspace/train.py", line 3, in <module>\n'
    "    find(name)\n"
    '  File "/workspace/registry.py", line 11, in find\n'
    "    {code}\n"
    "ValueError: 'round' is no kind of mask; there are: box, poly\n"
)


def test_what_a_failed_lookup_was_turned_into_answers(explain_text: Explain) -> None:
    verdict = explain_text(LOOKUP.format(code="raise ValueError("))
    assert verdict.title.startswith("ValueError: 'round' is no kind of mask")
    assert "raised while handling KeyError: 'round'" in verdict.notes


def test_a_wait_that_was_broken_off_gives_way_to_what_was_waited_for(explain_text: Explain) -> None:
    waited = uncaught("asyncio.exceptions.CancelledError")
    caused = "\nThe above exception was the direct cause of the following exception:\n\n"
    said = uncaught("RuntimeError: no answer from the head node in 30 s")
    verdict = explain_text(waited + caused + uncaught("TimeoutError") + caused + said)
    assert verdict.title == "RuntimeError: no answer from the head node in 30 s"
    assert explain_text(uncaught("TimeoutError: head") + caused + said).title == "TimeoutError: head"
    assert explain_text(waited).title == "asyncio.exceptions.CancelledError"


def test_another_fault_while_handling_one_does_not_hide_it(explain_text: Explain) -> None:
    verdict = explain_text(LOOKUP.format(code="close(float(name))"))
    assert verdict.title == "KeyError: 'round'"
    assert any(note.startswith("it ended as ValueError") for note in verdict.notes)


def test_variable_that_is_not_set_is_told_from_a_missing_key(explain_text: Explain) -> None:
    log = uncaught("KeyError: 'DATA_ROOT'").replace(
        "/env/lib/python3.11/site-packages/torch/nn/module.py", "/usr/lib/python3.11/os.py"
    )
    assert explain_text(log).advice == "environment_variable"


def test_advice_is_given_in_chinese_with_the_same_words(
    explain_text: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = explain_text(
        uncaught("TypeError: Trainer.__init__() got an unexpected keyword argument 'tokens'")
    )
    monkeypatch.setattr(languages, "_chosen", ["zh"])
    said = "\n".join(verdict.lines())
    assert "调用 Trainer.__init__() 时传入了它不接受的参数，或缺少它需要的参数（tokens）" in said


def test_words_of_a_log_are_bounded_and_harmless_in_advice(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("KeyError: '" + "x{meaning}\x1b[31m" * 90 + "'"))
    assert verdict.advice == "key_missing"
    assert "\x1b" not in verdict.meaning
    assert len(verdict.meaning) < 600


def test_message_of_an_indented_excerpt_is_read(explain_text: Explain) -> None:
    log = "".join(f"        {line}\n" for line in uncaught("ValueError: bad").splitlines())
    assert explain_text(log).title == "ValueError: bad"


def test_line_without_a_traceback_is_told_with_what_it_goes_on_with(explain_text: Explain) -> None:
    log = (
        "RuntimeError: Failed to import lib.nn because of the following error:\nNo module named 'lib._six'\n"
    )
    verdict = explain_text(log)
    assert verdict.advice == "import_of_library"
    assert verdict.details["reason"] == "No module named 'lib._six'"


def test_exception_that_an_engine_logs_alone_is_read(explain_text: Explain) -> None:
    verdict = explain_text("(Worker_TP0 pid=12) ERROR [executor.py:1007] AssertionError: no blocks\n")
    assert verdict.title == "AssertionError: no blocks"


def test_progress_bar_below_a_message_is_none_of_it(explain_text: Explain) -> None:
    verdict = explain_text(uncaught("ValueError: bad") + "  0%|          | 0/9846 [00:03<?, ?it/s]\n")
    assert verdict.title == "ValueError: bad"


def test_tasks_that_slurm_kills_after_one_gave_up_are_no_cause(explain_text: Explain) -> None:
    log = (
        "Abort(1) on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "srun: error: cn-7: tasks 0-35: Killed\n"
    )
    assert explain_text(log).cause == "mpi_abort"
    assert explain_text("srun: error: cn-7: task 3: Killed\n" + log.splitlines()[1]).cause == "killed"


def test_traceback_whose_lines_but_the_first_stand_further_in_is_read(explain_text: Explain) -> None:
    first, *rest = uncaught("ValueError: bad", line=77).splitlines()
    verdict = explain_text("\n".join([first, *(f"    {line}" for line in rest)]) + "\n")
    assert verdict.exception is not None
    assert (verdict.title, verdict.exception.line) == ("ValueError: bad", 77)


def test_lines_that_the_hook_prints_below_an_exception_are_of_its_message(explain_text: Explain) -> None:
    log = uncaught("RuntimeError: inner error!", "[rank2]: ") + "[rank2]: heads = 8, only 32 will do\n"
    verdict = explain_text(log + "[rank2]: Compile with `TORCH_USE_CUDA_DSA` to enable assertions.\n")
    assert verdict.title == "RuntimeError: inner error! heads = 8, only 32 will do"


@pytest.mark.parametrize(
    "below",
    [
        "[W105 09:10:11.123456789 ProcessGroup.cpp:7] Warning: not destroyed",
        "\tat org.a.B$c.run(B.scala:7)",
        "\tERROR:torch.distributed.elastic.multiprocessing.api:failed",
    ],
)
def test_what_loggers_and_java_print_below_an_exception_is_not_of_its_message(
    explain_text: Explain, below: str
) -> None:
    verdict = explain_text(uncaught("RuntimeError: inner error!", "[rank2]:") + f"[rank2]:{below}\n")
    assert verdict.title == "RuntimeError: inner error!"


def test_a_path_that_a_page_put_on_the_next_line_belongs_to_the_message(explain_text: Explain) -> None:
    lines = "[rank3]: FileNotFoundError: [Errno 2] No such file or directory:\n         '/d/shard 7.npz'\n"
    assert explain_text(lines).details["path"] == "/d/shard 7.npz"


@pytest.mark.parametrize(
    "behind",
    [
        "INFO:root:worker 1 has its samples",
        "2026-03-04 10:11:12,345 - INFO - worker 1 has its samples",
        "I0304 10:11:12.345678 4007 loader.py:88] worker 1 has its samples",
        "gn-7:388:411 [3] NCCL INFO cudaDriverVersion 12040",
        "[rank1]:[W1127 10:11:12.345678901 ProcessGroupNCCL.cpp:1250] Warning: not destroyed",
        "Traceback (most recent call last):",
    ],
)
def test_line_of_another_process_behind_a_message_is_no_part_of_it(
    explain_text: Explain, behind: str
) -> None:
    verdict = explain_text(uncaught("KeyError: 'reward'").rstrip("\n") + behind + "\n")
    assert verdict.title == "KeyError: 'reward'"


def test_time_in_a_message_is_a_part_of_it(explain_text: Explain) -> None:
    said = "ValueError: no data of 2026-03-04 10:11:12, nor of run_2026-03-04 10:11:12.5"
    assert explain_text(uncaught(said)).title == said


def test_program_that_ended_well_did_not_fail_of_that(explain_text: Explain) -> None:
    ended = uncaught("SystemExit: 0")
    cleanup = uncaught("ValueError: the writer is closed")
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert explain_text(ended + during + cleanup).title == "ValueError: the writer is closed"
    refused = ended.replace("SystemExit: 0", "SystemExit: 3")
    assert explain_text(refused + during + cleanup).title != "ValueError: the writer is closed"


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_what_ended_a_program_in_cpp_is_what_it_says_below(explain_text: Explain, prefix: str) -> None:
    thrown = "terminate called after throwing an instance of 'gloo::IoException'\n"
    what = "  what():  [pair.cc:9] Connection closed by peer [10.2.0.6]:4077\n"
    aborted = f"{prefix}{thrown}{prefix}{what}{prefix}Aborted (core dumped)\n"
    verdict = explain_text(aborted)
    assert (verdict.cause, verdict.details["peer"]) == ("connection_lost", "10.2.0.6")
    # What others lost after it does not explain it.
    other = (
        f"{prefix}Aborted (core dumped)\n[rank5]: RuntimeError: Connection closed by peer [10.2.0.6]:4077\n"
    )
    assert explain_text(other).cause == "abort"


def test_function_in_which_a_program_crashed_is_named(explain_text: Explain) -> None:
    verdict = explain_text(
        "[gn3:77:0:802] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)\n"
        "==== backtrace (tid:    802) ====\n"
        " 0 0x0000000000042990 __sigaction()  ???:0\n"
        " 1 0x00000000000126b0 ibgda_make_queue()  ibgda.cpp:0\n"
        " 2 0x000000000001aa80 nvshmemt_ibgda_connect()  ???:0\n"
    )
    assert (verdict.cause, verdict.details["library"]) == ("segfault", "ibgda_make_queue")
