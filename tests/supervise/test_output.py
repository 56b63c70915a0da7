"""Output arrives whole, looks as it would without a supervisor, and is in the log."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import signal
import socket
import struct
import subprocess
import termios
from pathlib import Path

from tests.lab.waiting import LIMIT_S, until
from tests.supervise.lab import Supervise, Supervised, python

ISATTY = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty())"


def read_terminal(reading: int, run: Supervised) -> bytes:
    """Read a terminal's screen side until the supervisor has gone."""
    seen = b""
    os.set_blocking(reading, False)

    def ended() -> bool:
        nonlocal seen
        gone = run.process.poll() is not None
        try:
            while chunk := os.read(reading, 65536):
                seen += chunk
        except OSError:
            pass
        return gone

    until(ended)
    return seen


def open_terminal(rows: int = 40, columns: int = 100) -> tuple[int, int]:
    reading, writing = os.openpty()
    resize(writing, rows, columns)
    return reading, writing


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_fifty_megabytes_arrive_unchanged_outside_and_in_the_log(supervise: Supervise) -> None:
    code = (
        "import os, random\n"
        "random.seed(1)\n"
        "lines = [random.randbytes(random.randrange(1, 90)).hex().encode() for _ in range(9000)]\n"
        "block = b'\\n'.join(lines)\n"
        "view = memoryview(block * (50_000_000 // len(block)))\n"
        "while view: view = view[os.write(1, view[:random.randrange(1, 300_000)]):]\n"
    )
    random.seed(1)
    lines = [random.randbytes(random.randrange(1, 90)).hex().encode() for _ in range(9000)]
    block = b"\n".join(lines)
    expected = hashlib.sha256(block * (50_000_000 // len(block))).hexdigest()
    run = supervise(*python(code))
    run.finish()
    assert hashlib.sha256(run.output).hexdigest() == expected
    assert hashlib.sha256(run.log_path.read_bytes()).hexdigest() == expected


def test_stdout_and_stderr_in_one_file_keep_their_order(supervise: Supervise) -> None:
    run = supervise("sh", "-c", "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done")
    run.finish()
    expected = b"".join(b"out %d\nerr %d\n" % (i, i) for i in range(1, 6))
    assert run.output == expected
    assert run.log.encode() == expected


def test_stdout_and_stderr_in_two_files_stay_two(supervise: Supervise) -> None:
    run = supervise("sh", "-c", "echo out; echo err >&2", stderr=subprocess.PIPE)
    out, err = run.process.communicate(timeout=LIMIT_S)
    assert (out, err) == (b"out\n", b"err\n")
    assert sorted(run.log.splitlines()) == ["err", "out"]


def test_two_streams_never_share_a_line_of_the_log(supervise: Supervise) -> None:
    code = "import os, time; os.write(2, b'bar 10%'); time.sleep(0.2); os.write(1, b'Step 1\\n')"
    run = supervise(*python(code), stderr=subprocess.PIPE)
    run.process.communicate(timeout=LIMIT_S)
    assert run.log == "bar 10%\nStep 1\n"


def test_each_line_carries_the_node(supervise: Supervise) -> None:
    run = supervise("printf", "one\ntwo\n", prefix="[node 1] ")
    run.finish()
    assert run.output == b"[node 1] one\n[node 1] two\n"
    assert run.log == "[node 1] one\n[node 1] two\n"


def test_a_progress_bar_is_redrawn_outside_and_condensed_in_the_log(supervise: Supervise) -> None:
    code = "import sys\nfor i in range(5): sys.stderr.write(f'\\r{i}/4 steps')\nsys.stderr.write('\\n')"
    run = supervise(*python(code), prefix="[node 0] ")
    run.finish()
    assert run.output.count(b"\r[node 0] ") == 5
    assert run.log.splitlines()[-1] == "[node 0] 4/4 steps"
    assert "\r" not in run.log


def test_a_pipe_stays_a_pipe_for_the_command(supervise: Supervise) -> None:
    run = supervise(*python(ISATTY))
    run.finish()
    assert run.output == b"False False\n"


def test_a_terminal_stays_a_terminal_of_the_same_size_less_the_prefix(supervise: Supervise) -> None:
    reading, writing = open_terminal(rows=40, columns=100)
    code = f"import os; {ISATTY}; print(os.get_terminal_size().columns, os.get_terminal_size().lines)"
    run = supervise(*python(code), prefix="[node 1] ", stdout=writing, stderr=writing)
    os.close(writing)
    screen = read_terminal(reading, run)
    os.close(reading)
    # The one "\r" a line is the real terminal's own; ours adds none, and the log has none.
    assert screen == b"[node 1] True True\r\n[node 1] 91 40\r\n"
    assert run.log == "[node 1] True True\n[node 1] 91 40\n"


def test_only_the_stream_on_a_terminal_sees_a_terminal(supervise: Supervise) -> None:
    reading, writing = open_terminal()
    run = supervise(*python(ISATTY), stderr=writing)
    os.close(writing)
    assert run.process.communicate(timeout=LIMIT_S)[0] == b"False True\n"
    os.close(reading)


def test_a_resized_terminal_reaches_the_command(supervise: Supervise, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\n"
        "def resized(*_):\n"
        "    print('now', os.get_terminal_size().columns)\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGWINCH, resized)\n"
        "print('ready')\n"
        "while True: time.sleep(0.01)\n"
    )
    reading, writing = open_terminal()
    run = supervise(*python(code), stdout=writing, stderr=writing)
    until(lambda: run.log_path.exists() and "ready" in run.log)
    resize(writing, 40, 60)
    run.process.send_signal(signal.SIGWINCH)
    os.close(writing)
    assert b"now 60" in read_terminal(reading, run)
    os.close(reading)


def test_a_reader_that_leaves_does_not_end_the_training(supervise: Supervise) -> None:
    code = "import time\nprint('first')\nfor i in range(20): time.sleep(0.02); print('step', i)"
    run = supervise(*python(code))
    run.read_until(b"first")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.wait(LIMIT_S)
    assert run.process.returncode == 0
    assert "step 19" in run.log
    assert "[WARN] output can no longer be written: Broken pipe" in run.log


def test_closed_descriptors_do_no_harm(supervise: Supervise) -> None:
    run = supervise("echo", "hello", before=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    assert run.finish()["exit_code"] == 0
    assert run.log == "hello\n"


def test_a_huge_line_is_passed_on_without_being_held(supervise: Supervise) -> None:
    code = (
        "import os\n"
        "for _ in range(100): os.write(1, b'x' * 1_000_000)\n"
        "ppid = os.getppid()\n"
        "peak = [l for l in open(f'/proc/{ppid}/status') if l.startswith('VmHWM')][0]\n"
        'print(); print(peak, end="")\n'
    )
    run = supervise(*python(code), prefix="[node 0] ")
    run.finish()
    assert run.output.count(b"x") == 100_000_000
    peak_kib = int(run.output.split()[-2])
    assert peak_kib < 45 * 1024


def test_a_socket_as_stdout_is_written_whole(supervise: Supervise) -> None:
    ours, theirs = socket.socketpair()
    run = supervise(*python("import os; os.write(1, b'y' * 3_000_000)"), stdout=theirs, stderr=theirs)
    theirs.close()
    received = 0
    while chunk := ours.recv(1 << 20):
        received += len(chunk)
    ours.close()
    run.finish()
    assert received == 3_000_000


def test_output_to_a_regular_file_goes_after_what_is_in_it(supervise: Supervise, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    with target.open("wb") as file:
        file.write(b"banner\n")
        file.flush()
        supervise("echo", "hello", stdout=file, stderr=file).finish()
    assert target.read_bytes() == b"banner\nhello\n"


def test_what_the_end_gives_rise_to_is_said(supervise: Supervise) -> None:
    run = supervise("true", at_exit=12345)
    run.finish()
    assert "12345" in run.log
