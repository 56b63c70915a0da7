"""Reading a build's output."""

from __future__ import annotations

import pytest

from platform_launch.wheels.lines import BuildStep, advance, failure

# As pip --verbose shows it, indented; shortened in the middle.
BUILD = """\
  running build_ext
  building 'deepspeed.ops.adam.cpu_adam_op' extension
  [1/2] c++ -MMD -MF /b/csrc/adam/cpu_adam.o.d -Wall -I/x -c -c /b/csrc/adam/cpu_adam.cpp -o /b/cpu_adam.o -O3
  /b/csrc/includes/simd.h:337: warning: ignoring '#pragma unroll ' [-Wunknown-pragmas]
  [2/2] c++ -MMD -MF '/a b/impl.o'.d -c -c '/a b/csrc/adam/cpu_adam_impl.cpp' -o '/a b/impl.o' -O3
  building 'deepspeed.ops.utils_op' extension
"""


def test_each_op_and_each_compiled_file_is_a_step() -> None:
    step, steps = BuildStep(), []
    for line in BUILD.splitlines():
        following = advance(step, line)
        if following is not step:
            steps.append(following)
        step = following
    assert steps == [
        BuildStep("cpu_adam", 1),
        BuildStep("cpu_adam", 1, 1, 2, "cpu_adam.cpp"),
        BuildStep("cpu_adam", 1, 2, 2, "cpu_adam_impl.cpp"),
        BuildStep("utils", 2),
    ]


COMPILER = """\
  [1/4] c++ -Wall -Werror=format -c -c /b/csrc/adam/cpu_adam.cpp -o cpu_adam.o
  FAILED: [code=1] cpu_adam.o
  /b/csrc/adam/cpu_adam.cpp:9:10: fatal error: nothing_here.h: No such file or directory
      9 | #include <nothing_here.h>
        |          ^~~~~~~~~~~~~~~~
  compilation terminated.
  ninja: build stopped: subcommand failed.
  RuntimeError: Error compiling objects for extension
  error: subprocess-exited-with-error
"""


def test_of_all_errors_the_compilers_first_is_shown() -> None:
    lines, _ = failure(COMPILER)
    assert lines[0].endswith("fatal error: nothing_here.h: No such file or directory")
    assert lines[1] == "9 | #include <nothing_here.h>"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "fewer --jobs"),
        ("/tmp/cc.s: fatal error: error writing to /tmp/x.s: No space left on device", "disk"),
        (
            "host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 13",
            "older GCC",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_121'", "--arch"),
        ("x.cpp:1:10: fatal error: libaio.h: No such file or directory", "development package"),
        ("/usr/bin/ld: cannot find -laio: No such file or directory", "library's development package"),
    ],
)
def test_a_known_cause_has_its_cure(line: str, hint: str) -> None:
    output = f"  a.cpp:3:1: warning: unused\n  {line}\n  ninja: build stopped\n  error: metadata\n"
    lines, advice = failure(output)
    assert lines[0] == line
    assert hint in advice


def test_an_exception_of_setup_py_is_shown_where_no_compiler_complained() -> None:
    lines, _ = failure("Traceback\n  File x\n  ModuleNotFoundError: No module named 'einops'\n")
    assert lines[0] == "ModuleNotFoundError: No module named 'einops'"


def test_output_without_any_error_shows_its_end() -> None:
    assert failure("one\n\ntwo\n") == (["one", "two"], "")
