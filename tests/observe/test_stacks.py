from __future__ import annotations

import pytest

from platform_launch.observe.activity import activity_of
from platform_launch.observe.stacks import PythonFrame, ThreadStack, main_stack, own_first, parse_stacks

TORCH = "/venv/lib/python3.11/site-packages/torch"
DUMP = f"""\
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/job/data.py", line 9 in feed

Current thread 0x00007f0000000003 (most recent call first):
  <no Python frame>

Thread 0x00007f0000000001 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 56 in train_step
  File "/job/train.py", line ??? in <module>
"""


def test_main_thread_comes_first_and_threads_without_python_are_left_out() -> None:
    threads = parse_stacks(DUMP)
    assert [(thread.main, len(thread.frames)) for thread in threads] == [(True, 3), (False, 2)]
    assert threads[0].frames[2] == PythonFrame("/job/train.py", 0, "<module>")


def test_main_thread_is_known_by_its_identity() -> None:
    main = main_stack(parse_stacks(DUMP, 0x00007F0000000002))
    assert main is not None
    assert main.frames[1].function == "feed"


def test_innermost_frame_of_the_user_is_the_own_one() -> None:
    main, other = parse_stacks(DUMP)
    assert str(main.own) == "/job/train.py:56 in train_step"
    assert str(other.own) == "/job/data.py:9 in feed"
    assert [frame.line for frame in own_first(main.frames)] == [56, 0]


def test_library_that_alone_is_on_the_stack_is_shown() -> None:
    frame = PythonFrame(f"{TORCH}/utils/data/dataloader.py", 7, "poll")
    assert ThreadStack(True, (frame,)).own == frame
    assert ThreadStack(True, ()).own is None


def test_of_several_dumps_in_a_file_the_last_is_read() -> None:
    (main, *_) = parse_stacks(DUMP + DUMP.replace("line 56", "line 57"))
    assert main.frames[1].line == 57


def test_threads_of_python_3_14_have_names() -> None:
    text = DUMP.replace("0x00007f0000000002 (", "0x00007f0000000002 [feeder] (")
    assert [thread.name for thread in parse_stacks(text)] == ["", "feeder"]


@pytest.mark.parametrize("text", ["", "Fatal Python error", "\x00" * 100, '  File "x", line 1 in f'])
def test_what_is_no_dump_has_no_threads(text: str) -> None:
    assert parse_stacks(text) == ()


@pytest.mark.parametrize(
    ("file", "function", "known"),
    [
        (f"{TORCH}/serialization.py", "_save", "checkpoint"),
        (f"{TORCH}/_inductor/codecache.py", "load", "compile"),
        (f"{TORCH}/utils/data/dataloader.py", "_try_get_data", "data"),
        (f"{TORCH}/distributed/distributed_c10d.py", "barrier", "collective"),
        ("/usr/lib/python3.11/subprocess.py", "_wait", "child"),
        ("/job/train.py", "save", None),
    ],
)
def test_frames_tell_what_a_process_is_busy_with(file: str, function: str, known: str | None) -> None:
    activity = activity_of([PythonFrame("/job/inner.py", 1, "f"), PythonFrame(file, 3, function)])
    assert (activity.id if activity is not None else None) == known
