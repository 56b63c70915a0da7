"""A real agent and its trainings, against a server that may be gone, new or wrong."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from platform_launch import events
from platform_launch.hardware import running
from platform_launch.procguard.agent.output import OutputRhythm, SlowRanksReader
from platform_launch.procguard.api.wire import OrderAction, WorkerOrder, WorkerState
from platform_launch.sentences import sentence
from tests.conftest import FakeNvml
from tests.lab.needs import takes_long
from tests.lab.nvml import fake
from tests.lab.waiting import LIMIT_S, until
from tests.procguard.agent_lab import TOKEN, AgentNode, WireServer, node_in, serving

HOSTILE = [
    "two words",
    "it's",
    'say "x"',
    "line\nend",
    "$(touch owned)",
    "`id`",
    "*",
    "",
    "-n",
    "é;&|",
    "${HOME}",
]


@pytest.fixture
def server() -> Iterator[WireServer]:
    with serving() as server:
        yield server


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentNode]:
    with node_in(tmp_path / "node") as node:
        yield node


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", code, *arguments)


SLEEP = python("import time; print('begun'); time.sleep(300)")
NOTE = "import os; open('starts', 'a').write('x'); print('ran'); "


def prepare(generation: int, command: tuple[str, ...], **more: object) -> WorkerOrder:
    return WorkerOrder(action=OrderAction.PREPARE, generation=generation, command=command, **more)  # type: ignore[arg-type]


def started(server: WireServer, generation: int, command: tuple[str, ...], **more: object) -> None:
    """Take a worker through both steps."""
    order = prepare(generation, command, **more)
    server.order(0, order)
    server.wait(WorkerState.READY, generation)
    server.order(0, order.model_copy(update={"action": OrderAction.RUN}))


def stop(generation: int, grace_s: float = 20.0) -> WorkerOrder:
    return WorkerOrder(action=OrderAction.STOP, generation=generation, grace_s=grace_s)


def training(server: WireServer) -> int:
    """Return the process id of worker 0's training, as reported."""
    until(lambda: server.reports[0].pid, "the training's process id")
    pid = server.reports[0].pid
    assert pid is not None
    return pid


def log(server: WireServer, generation: int) -> bytes:
    return server.logs.get((0, generation), b"")


def test_start_log_exit_and_the_next_generation(server: WireServer, node: AgentNode) -> None:
    node.start(server.url, workers=2)
    server.wait(WorkerState.IDLE, 0, number=1)
    assert [(join.node, join.workers, join.allowed) for join in server.joins] == [("gn6", 2, None)]
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
    started(server, 4, python(show, *HOSTILE), environment={"RANK": "3", "MASTER_ADDR": "localhost"})
    ended = server.wait(WorkerState.EXITED, 4)
    assert (ended.exit_code, ended.stop_requested, ended.reason, ended.verdict) == (0, False, "", "")
    assert ended.ended_s_ago is not None
    until(lambda: len(log(server, 4)) == ended.log_bytes, "the whole log")
    words, variables, directory = json.loads(log(server, 4))
    assert words == HOSTILE
    assert (variables["RANK"], variables["MASTER_ADDR"]) == ("3", "localhost")
    assert TOKEN not in variables.values()
    assert directory == str(node.work)
    assert not (node.work / "owned").exists()
    # RUN is repeated with every heartbeat, and starts nothing again.
    beats = server.beats
    until(lambda: server.beats > beats + 5, "more heartbeats")
    assert server.state() == (WorkerState.EXITED, 4)
    started(server, 5, python("import sys; print('RuntimeError: CUDA out of memory'); sys.exit(3)"))
    failed = server.wait(WorkerState.EXITED, 5)
    assert failed.exit_code == 3
    until(lambda: "memory" in server.reports[0].verdict, "the verdict")
    assert node.end() == 0
    assert not node.processes()


def test_a_group_is_stopped_and_obeys_or_is_killed(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(300)"
    )
    started(server, 1, python(stubborn))
    until(lambda: b"deaf" in log(server, 1), "the training")
    pid = training(server)
    server.order(0, stop(1, grace_s=60))
    server.wait(WorkerState.STOPPING, 1)
    server.order(0, stop(1, grace_s=0.2))  # shorter than what it was given at first
    ended = server.wait(WorkerState.EXITED, 1)
    assert ended.stop_requested
    assert ended.exit_code == 128 + signal.SIGKILL
    assert "server's order" in ended.reason
    assert running.find(pid) is None


def test_a_newer_generation_ends_the_older_first(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    started(server, 1, SLEEP)
    server.wait(WorkerState.RUNNING, 1)
    server.order(0, prepare(2, SLEEP, grace_s=20.0))
    server.wait(WorkerState.READY, 2)
    seen = [(report.state, report.generation) for report in server.seen]
    assert seen.index(
        (WorkerState.EXITED, 1) if (WorkerState.EXITED, 1) in seen else (WorkerState.STOPPING, 1)
    ) < seen.index((WorkerState.READY, 2))
    assert (node.ended(1) or {})["stop_requested"]


def test_run_without_having_been_ready_is_lost(server: WireServer, node: AgentNode) -> None:
    server.order(0, WorkerOrder(action=OrderAction.RUN, generation=9, command=python(NOTE)))
    node.start(server.url)
    assert "no record of being ready" in server.wait(WorkerState.LOST, 9).reason
    assert not (node.work / "starts").exists()


def test_stop_while_ready_withdraws_it(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    server.order(0, prepare(3, SLEEP))
    server.wait(WorkerState.READY, 3)
    server.order(0, stop(3))
    server.wait(WorkerState.IDLE, 0)
    server.order(0, WorkerOrder(action=OrderAction.RUN, generation=3, command=SLEEP))
    server.wait(WorkerState.LOST, 3)


def test_an_agent_that_is_killed_finds_its_training_again(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    ticks = NOTE + "import time\nfor n in range(3000):\n    print(n); time.sleep(0.02)"
    started(server, 1, python(ticks))
    server.wait(WorkerState.RUNNING, 1)
    until(lambda: b"\n5\n" in log(server, 1), "output")
    pid, supervisor = training(server), node.supervisor(1)
    node.kill()
    reached = (node.run_folder(1) / "output.log").stat().st_size
    until(lambda: (node.run_folder(1) / "output.log").stat().st_size > reached, "output without an agent")
    server.reports.clear()
    node.start(server.url)
    server.wait(WorkerState.RUNNING, 1)
    assert training(server) == pid
    assert node.supervisor(1) == supervisor
    assert len(server.joins) == 1  # it kept its credential
    until(lambda: len(log(server, 1)) > reached, "the log to go on")
    server.order(0, stop(1))
    ended = server.wait(WorkerState.EXITED, 1)
    assert ended.stop_requested
    until(lambda: len(log(server, 1)) == ended.log_bytes, "the whole log")
    numbers = [int(line) for line in log(server, 1).splitlines() if line.isdigit()]
    assert numbers == list(range(len(numbers)))  # nothing lost, nothing twice
    assert (node.work / "starts").read_text() == "x"


@takes_long
def test_a_training_that_ends_without_an_agent_is_reported_later(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    started(server, 1, python("import time; time.sleep(0.7); raise SystemExit(7)"))
    server.wait(WorkerState.RUNNING, 1)
    node.kill()
    until(lambda: node.ended(1), "the end")
    time.sleep(0.3)
    node.start(server.url)
    ended = server.wait(WorkerState.EXITED, 1)
    assert ended.exit_code == 7
    assert ended.ended_s_ago is not None
    assert ended.ended_s_ago > 0.3


def test_a_supervisor_that_is_killed_takes_its_training_along(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    # A child in a session of its own, which hears nothing of its parent's end and ignores SIGTERM.
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child'); time.sleep(300)"
    )
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-uc', {child!r}], start_new_session=True)"
    )
    started(server, 1, python(parent))
    until(lambda: b"child" in log(server, 1), "both processes")
    os.kill(node.supervisor(1), signal.SIGKILL)
    assert "supervisor is gone" in server.wait(WorkerState.LOST, 1).reason
    until(lambda: len(node.processes()) == 1, "only the agent to be left")
    started(server, 2, python(NOTE))
    server.wait(WorkerState.EXITED, 2)


def test_a_server_that_is_away_changes_nothing(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    started(server, 1, python("import time\nfor n in range(3000):\n    print(n); time.sleep(0.02)"))
    server.wait(WorkerState.RUNNING, 1)
    pid = training(server)
    until(lambda: len(log(server, 1)) > 10, "output")
    server.stop()
    until(lambda: "cannot reach" in node.said.read_text(), "the agent to notice")
    time.sleep(1.0)
    # A server with a new memory: it knows neither the credential nor half of the log.
    server.reports.clear()
    server.credential = "credential-2"
    server.logs[0, 1] = server.logs[0, 1][:10]
    server.start()
    assert server.wait(WorkerState.RUNNING, 1).pid == pid
    assert len(server.joins) == 2
    server.order(0, stop(1))
    ended = server.wait(WorkerState.EXITED, 1)
    until(lambda: len(log(server, 1)) == ended.log_bytes, "the whole log")
    numbers = [int(line) for line in log(server, 1).splitlines() if line.isdigit()]
    assert numbers == list(range(len(numbers)))
    said = node.said.read_text()
    assert said.count("cannot reach") == 1  # one line for a condition, however often it is tried
    assert said.count("connected to") == 2


def test_what_may_not_or_cannot_start_is_refused_with_the_reason(server: WireServer, node: AgentNode) -> None:
    node.start(server.url, "--allow", f"{shlex.quote(sys.executable)} -c *", "--allow", "nowhere/train.sh")
    server.wait(WorkerState.IDLE, 0)
    assert server.joins[0].allowed == (f"{sys.executable} -c *", "nowhere/train.sh")
    port = int(server.url.rpartition(":")[2])
    cases: tuple[tuple[tuple[str, ...], dict[str, object], str], ...] = (
        (("sh", "-c", "touch owned"), {}, "is not allowed on this node"),
        (("nowhere/train.sh",), {}, "no program "),
        ((sys.executable, "-c", "0"), {"environment": {"LD_PRELOAD": "/x.so"}}, "LD_PRELOAD"),
        ((sys.executable, "-c", "0"), {"check_port": port}, "is in use by pid"),
        ((), {}, "no command"),
        ((sys.executable, "-c", "0"), {"environment": {"MASTER_ADDR": "no-such.invalid"}}, "be resolved"),
    )
    for generation, (command, more, reason) in enumerate(cases, start=1):
        server.order(0, prepare(generation, command, **more))
        assert reason in server.wait(WorkerState.REFUSED, generation).reason
    # What was in the way goes away: the same order is answered anew.
    program = node.work / "nowhere" / "train.sh"
    server.order(0, prepare(9, ("nowhere/train.sh",)))
    server.wait(WorkerState.REFUSED, 9)
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho allowed\n")
    program.chmod(0o755)
    server.wait(WorkerState.READY, 9)


def test_a_training_finds_the_join_token_nowhere(server: WireServer, node: AgentNode) -> None:
    agent = node.start(server.url)
    code = f"print(open('/proc/{agent.pid}/environ', 'rb').read().count({TOKEN.encode()!r}))"
    started(server, 1, python(code))
    assert server.wait(WorkerState.EXITED, 1).exit_code == 0
    until(lambda: log(server, 1).endswith(b"\n"), "its output")
    assert log(server, 1).splitlines()[-1] == b"0"


@takes_long
def test_what_was_checked_is_what_starts(server: WireServer, node: AgentNode) -> None:
    """A server that says another thing with RUN than with PREPARE gets neither command nor variable past."""
    node.start(server.url, "--allow", f"{shlex.quote(sys.executable)} -u -c *")
    cases: tuple[tuple[dict[str, object], str], ...] = (
        ({"command": ("sh", "-c", "touch owned")}, "is not allowed on this node"),
        ({"environment": {"PYTHONSTARTUP": "x"}}, "PYTHONSTARTUP"),
    )
    for generation, (said_later, reason) in enumerate(cases, start=1):
        order = prepare(generation, python(NOTE))
        server.order(0, order)
        server.wait(WorkerState.READY, generation)
        server.order(0, order.model_copy(update={"action": OrderAction.RUN, **said_later}))
        assert reason in server.wait(WorkerState.REFUSED, generation).reason
        server.order(0, stop(generation))
        server.wait(WorkerState.IDLE, 0)
    assert not list(node.work.iterdir())


def test_sigterm_ends_the_trainings_and_says_goodbye(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    polite = (
        "import signal, time, sys; signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
    )
    started(server, 1, python(polite + "print('begun'); time.sleep(300)"))
    until(lambda: b"begun" in log(server, 1), "the training")
    assert node.end() == 0
    report = server.reports[0]
    assert (report.state, report.exit_code) == (WorkerState.EXITED, 0)
    assert "agent of this node" in report.reason
    assert log(server, 1).count(b"saved") == 1
    assert not node.processes()


@takes_long
def test_trainings_left_running_end_when_no_agent_comes(server: WireServer, node: AgentNode) -> None:
    node.start(server.url, "--leave-running", "--orphan-after", "15")
    started(server, 1, SLEEP)
    until(lambda: server.reports[0].pid is not None, "the training's own process, after its supervisor's")
    assert node.end() == 0
    assert len(node.processes()) >= 2
    until(lambda: not node.processes(), "the end of what nobody can stop")
    ended = node.ended(1) or {}
    assert (ended["stop_requested"], ended["reason"]["code"]) == (False, "agent-gone")


def test_an_agent_whose_name_another_has_taken_ends_its_trainings(
    server: WireServer, node: AgentNode
) -> None:
    agent = node.start(server.url, "--orphan-after", "1.5")
    started(server, 1, SLEEP)
    server.wait(WorkerState.RUNNING, 1)
    server.taken, server.credential = True, "the other one's"
    assert agent.wait(LIMIT_S) == 0
    assert not node.processes()
    assert "another agent has this node's name" in node.said.read_text()


@takes_long
def test_two_agents_one_folder_wrong_token_taken_node(
    server: WireServer, node: AgentNode, tmp_path: Path
) -> None:
    first = node.start(server.url)
    server.wait(WorkerState.IDLE, 0)
    second = node.start(server.url)
    assert second.wait(LIMIT_S) == 64
    assert "another agent uses" in node.said.read_text()
    node.process = first
    with node_in(tmp_path / "other") as other:
        assert other.start(server.url, token="wrong").wait(LIMIT_S) == 64
        assert "wrong join token" in other.said.read_text()
        assert other.start(server.url, token=None).wait(LIMIT_S) == 64
        assert "error: this agent has no join token" in other.said.read_text()
        assert "trying again" not in other.said.read_text(), "of what ends at once"
        server.taken = True
        waiting = other.start(server.url)
        until(lambda: "another agent has the name gn6" in other.said.read_text(), "the refusal")
        server.taken = False
        until(lambda: len(server.joins) == 2, "the node to be free")
        assert waiting.poll() is None


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--server", "ftp://x"], 64, "expected http://HOST:PORT"),
        (["--server", "http://a b"], 64, "expected http://HOST:PORT"),
        (["--server", "http://h:port"], 64, "expected http://HOST:PORT"),
        (["--server", "http://127.0.0.1:1", "--node", "../x"], 64, "is not a node name"),
        (["--server", "http://127.0.0.1:1", "--allow", "*"], 64, "contains no command"),
        (["--server", "http://127.0.0.1:1", "--allow", "a", "--command", "b"], 64, "is not allowed by"),
        (["--server", "http://127.0.0.1:1", "--command", "a 'b"], 64, "cannot be split"),
        (["--server", "http://127.0.0.1:1", "--directory", "/nowhere"], 66, "no such folder"),
        (["--server", "http://127.0.0.1:1", "--token-file", "/nowhere"], 66, "No such file"),
        (["--server", "https://127.0.0.1:1", "--ca-file", "/nowhere"], 66, "--ca-file /nowhere"),
    ],
)
def test_mistakes_on_the_command_line(
    flags: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from platform_launch.cli.procguard import main

    assert main(["agent", "--state", str(tmp_path / "state"), *flags]) == code
    assert said in capsys.readouterr().err


@takes_long
def test_changed_flags_are_told_and_surplus_workers_end(server: WireServer, node: AgentNode) -> None:
    node.start(server.url, workers=2)
    order = prepare(1, SLEEP)
    server.order(1, order)
    server.wait(WorkerState.READY, 1, number=1)
    server.order(1, order.model_copy(update={"action": OrderAction.RUN}))
    server.wait(WorkerState.RUNNING, 1, number=1)
    node.kill()
    node.start(server.url, workers=1)
    until(lambda: node.ended(1, number=1), "the end of the second worker")
    until(lambda: [join.workers for join in server.joins] == [2, 1], "the server to be told")
    until(lambda: len(node.processes()) == 1, "only the agent to be left")


def test_gpus_are_reported_while_the_driver_answers(
    server: WireServer, node: AgentNode, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    variables = fake_nvml(*fake.h100s(4), fake.use(0, 97), fake.use(1, 3))
    node.start(server.url, workers=2, env={**variables, "CUDA_VISIBLE_DEVICES": "0,1"})
    until(lambda: server.reports.get(1) and server.reports[1].gpus, "a reading")
    assert [gpu.index for gpu in server.reports[0].gpus] == [0]
    (second,) = server.reports[1].gpus
    assert (second.index, second.utilization_percent) == (1, 3.0)
    assert second.memory_used_gib == pytest.approx(600 / 1024)


def test_other_peoples_processes_on_the_gpus_are_reported_and_its_own_are_not(
    server: WireServer, node: AgentNode, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            variables = fake_nvml(*fake.h100s(1), fake.process(0, other.pid, 2048))
            node.start(server.url, env=variables)
            until(lambda: server.gpu_processes, "a report")
            (seen,) = server.gpu_processes
            assert (seen.gpu, seen.pid, seen.name, seen.memory_gib) == (0, other.pid, "sleep", 2.0)
            assert seen.user
            started(server, 1, SLEEP)
            until(lambda: server.reports[0].pid, "the training's process")
            ours = server.reports[0].pid
            assert ours is not None
            fake.say(tmp_path / "nvml-0.txt", (*fake.h100s(1), fake.process(0, ours, 1024)))
            until(lambda: not server.gpu_processes, "the other one to be gone, and its own not to come")
        finally:
            other.kill()


@takes_long
def test_https_by_the_authority_that_was_given(server: WireServer, node: AgentNode, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = "subjectAltName=IP:127.0.0.1"
    made = [openssl, *words.split(), "-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    server.stop()
    server.encrypt(certificate, key)
    server.start()
    node.start(server.url)
    until(lambda: "with --ca-file" in node.said.read_text(), "the refusal of an unknown authority")
    assert not server.joins
    node.kill()
    node.start(server.url, "--ca-file", str(certificate))
    server.wait(WorkerState.IDLE, 0)


def test_a_server_that_does_not_answer_holds_nothing_up(server: WireServer, node: AgentNode) -> None:
    node.start(server.url)
    started(server, 1, SLEEP)
    server.wait(WorkerState.RUNNING, 1)
    server.hang.set()
    beats = server.beats
    until(lambda: server.waiting > 0, "a heartbeat that gets no answer")
    assert node.process is not None
    node.process.send_signal(signal.SIGTERM)
    until(lambda: node.ended(1), "the end of the training")
    server.hang.clear()  # not before: no heartbeat had an answer until the training had ended
    assert node.process.wait(LIMIT_S) == 0
    assert server.beats > beats


class AsksOnce(WireServer):
    """A server that is lost once it has asked what a worker's ranks do."""

    def __init__(self) -> None:
        super().__init__()
        self.asks = self.asked = False
        self.missed_beats = self.looks = 0

    def answer(
        self, path: str, query: Mapping[str, list[str]], body: bytes, bearer: str
    ) -> tuple[int, object]:
        lost = 503, {"error": "lost", "hint": ""}
        if path.endswith("/ranks"):
            self.looks += 1
            return lost
        if not self.asks or not path.endswith("/heartbeat"):
            return super().answer(path, query, body, bearer)
        if self.asked:
            self.missed_beats += 1
            return lost
        self.asked = True
        status, document = super().answer(path, query, body, bearer)
        assert isinstance(document, dict)
        return status, {**document, "questions": {"0": "question-1"}}


@takes_long
def test_a_training_is_looked_at_once_for_a_server_that_is_lost_before_it_has_the_answer(
    node: AgentNode,
) -> None:
    server = AsksOnce()
    server.start()
    try:
        node.start(server.url)
        started(server, 1, SLEEP)
        server.wait(WorkerState.RUNNING, 1)
        server.asks = True
        until(lambda: server.looks and server.missed_beats >= 5)
        assert server.looks == 1
    finally:
        server.stop()


def test_a_run_that_usually_writes_often_and_has_stopped_stands_still(tmp_path: Path) -> None:
    output, rhythm = tmp_path / "output.log", OutputRhythm()
    output.touch()
    begun = time.time() - 500

    def write(at_s: float) -> float | None:
        os.utime(output, (begun + at_s, begun + at_s))
        return rhythm.read(output)

    assert [write(10.0 * number) for number in range(5)] == [None] * 5, "not known yet"
    assert write(55.0) == pytest.approx(445, abs=5)
    assert rhythm.stalled(output)
    assert write(500.0) is None, "one long pause: it may evaluate"
    assert rhythm.read(tmp_path / "another run") is None


def test_slow_ranks_are_read_from_the_events_of_the_launcher_below(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    told = [
        sentence("makes-longer", who=f"rank {rank}", percent="9%", step="1", usual="0.9") for rank in (3, 7)
    ]
    lines = [
        events.as_json(events.event(name, headline="x", headlines=[one.document()], ranks=ranks), 0)
        for name, one, ranks in (("slow-rank", told[0], "3"), ("slow-rank", told[1], "7"))
    ]
    events.beside(log).write_bytes(b"".join(lines) + b"no event\n")
    launcher = f"exec 3>>{shlex.quote(str(events.beside(log)))}; echo begun; read line"
    with subprocess.Popen(
        ["sh", "-c", f"sh -c {shlex.quote(launcher)}; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        reader = SlowRanksReader()
        assert reader.read(None) == ()
        assert reader.read(process.pid) == tuple(told)
        with events.beside(log).open("ab") as file:
            over = events.event("slow-rank-over", headline="x", headlines=[told[0].document()], ranks="3")
            file.write(events.as_json(over, 0))
        assert SlowRanksReader().read(process.pid) == (told[1],)
        assert SlowRanksReader().read(2**22) == (), "no such process"
        process.communicate(b"\n")
