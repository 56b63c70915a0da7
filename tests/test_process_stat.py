from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from platform_launch.process_stat import read_stat
from tests.lab.waiting import until


def test_process_is_read_whatever_its_name_until_it_is_reaped(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(sleep)
    with subprocess.Popen([program, "600"], start_new_session=True) as process:
        folder = Path("/proc", str(process.pid))
        until(lambda: (stat := read_stat(folder)) is not None and stat.name == program.name)
        stat = read_stat(folder)
        assert stat is not None
        assert (stat.parent, stat.session, stat.ended) == (os.getpid(), process.pid, False)
        assert read_stat(folder / "task" / str(process.pid)) is not None
        process.kill()
        until(lambda: (left := read_stat(folder)) is not None and left.ended)
        left = read_stat(folder)
        assert left is not None
        assert left.exit_status in (signal.SIGKILL, 0)  # 0: not told where ptrace(2) is not allowed
    assert read_stat(folder) is None
