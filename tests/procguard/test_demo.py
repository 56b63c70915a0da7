from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from platform_launch.errors import UsageError
from platform_launch.hardware import running
from platform_launch.procguard.demo import Demo, run_demo
from tests.lab.needs import takes_long
from tests.lab.waiting import LIMIT_S, until

_MARK = "PROCGUARD_TEST_OF_THE_DEMO"
TRAINING = "import os, time\nprint('rank', os.environ['RANK'], flush=True)\ntime.sleep(600)\n"


@takes_long
def test_the_demo_runs_a_group_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    folder = tmp_path / "demo"
    argv = (sys.executable, "-m", "platform_launch", "procguard", "demo", "--folder", str(folder))
    training = f"{sys.executable} {script}"
    env = {**os.environ, _MARK: str(tmp_path)}
    with (tmp_path / "said").open("w+") as said:
        demo = subprocess.Popen(
            (*argv, "--command", training), stdout=said, stderr=subprocess.STDOUT, env=env
        )
        try:
            pattern = r"open (http://127.0.0.1:\d+) and log in as admin with the password (\S+)"
            until(lambda: bool(re.search(pattern, Path(said.name).read_text())), "the address")
            found = re.search(pattern, Path(said.name).read_text())
            assert found is not None
            with httpx.Client(base_url=f"{found[1]}/api/v1", timeout=LIMIT_S) as api:
                login = api.post("/login", json={"name": "admin", "password": found[2]}).json()
                api.headers["Authorization"] = f"Bearer {login['token']}"

                def ranks() -> list[tuple[str, int | None]]:
                    workers = api.get("/workers").json()
                    return [(worker["status"], worker["rank"]) for worker in workers]

                until(lambda: ranks() == [("running", rank) for rank in range(4)], "four ranks")
            demo.send_signal(signal.SIGINT)
            assert demo.wait(LIMIT_S) == 0
        finally:
            demo.kill()
            demo.wait()
    left = [one for one in running.running() if running.variable(one.pid, _MARK) == str(tmp_path)]
    assert left == []


def test_a_port_that_somebody_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        demo = Demo(tmp_path / "demo", held.getsockname()[1], "true", {})
        with pytest.raises(UsageError, match=f"--port {demo.port}"):
            run_demo(demo, lambda *_: None, lambda _: None)
    assert not demo.folder.exists()


def test_what_a_killed_demo_left_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    left, begun = tmp_path / "procguard-demo-left", tmp_path / "procguard-demo-begun"
    for folder in (left / "server", begun):
        folder.mkdir(parents=True)
    program = (
        "import sys; from platform_launch.cli.procguard.demo import _temporary\n"
        "with _temporary() as folder:\n"
        "    (folder / 'server').mkdir(); print(folder, flush=True); sys.stdin.read()"
    )

    def begin() -> tuple[subprocess.Popen[str], Path]:
        demo = subprocess.Popen(
            (sys.executable, "-c", program),
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert demo.stdout is not None
        return demo, Path(demo.stdout.readline().strip())

    first, kept = begin()
    second, other = begin()
    assert {begun, kept, other} == set(tmp_path.iterdir()), (
        "only what nobody holds, and holds something, goes"
    )
    first.kill()
    first.communicate()
    second.communicate()
    assert {begun, kept} == set(tmp_path.iterdir())
    third, _ = begin()
    third.communicate()
    assert {begun} == set(tmp_path.iterdir())
