"""What a training sees of its place, and what an agent takes for a command, wherever the agent runs."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import TopologyError
from platform_launch.hardware import ports
from platform_launch.hardware.ports import Port
from platform_launch.platforms import detect
from platform_launch.procguard.agent.check import is_allowed, training_variables, why_not
from platform_launch.procguard.agent.machine import share
from platform_launch.procguard.api.english import english
from platform_launch.procguard.api.ranks import RankTable, WorkerKind, WorkerName, assign
from platform_launch.procguard.api.wire import OrderAction, WorkerOrder, WorkerReport, WorkerState

PLATFORMS = Path(__file__).parents[1] / "platforms"
SURROUNDINGS = [
    (f"{vector['dialect']}: {vector['name']}", vector["env"])
    for file in ("vectors.json", "more_vectors.json")
    for vector in json.loads((PLATFORMS / file).read_text(encoding="utf-8"))["vectors"]
]
RUN = "5b1f0c2d:0:7"


def places(*workers: str, kind: WorkerKind) -> RankTable:
    return assign(
        [WorkerName.parse(worker) for worker in workers], master_addr="gn6", master_port=29511, kind=kind
    )


def order(place: dict[str, str], **variables: str) -> WorkerOrder:
    return WorkerOrder(action=OrderAction.RUN, generation=7, environment=place, variables=variables)


def inside(variables: dict[str, str], place: dict[str, str]) -> Environment:
    agent = Environment(variables, root=Path("/nonexistent"), hostname="h", address="10.9.9.9")
    seen = training_variables(agent, order(place), RUN)
    return Environment(seen, root=Path("/nonexistent"), hostname="h", address="10.9.9.9")


def test_a_launcher_reads_the_place_that_the_server_gave() -> None:
    """The agent may run in any job of any platform; what it starts belongs to another."""
    table = places("gn6-0", "gn7-0", "gn39-0", kind=WorkerKind.NODE)
    for around, variables in SURROUNDINGS:
        topology = detect(inside(variables, table.environment(table.places[1], "nccl")))
        assert (topology.platform, topology.nnodes, topology.node_rank) == ("procguard", 3, 1), around
        assert (topology.master_addr, topology.master_port) == ("gn6", 29511), around


def test_a_process_sees_its_ranks_and_no_other() -> None:
    table = places("gn6-0", "gn6-1", "gn7-0", "gn7-1", kind=WorkerKind.PROCESS)
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    families = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "PET_", "GROUP_", "ROLE_")
    for around, variables in SURROUNDINGS:
        seen = inside(variables, table.environment(table.places[3], "gloo"))
        assert {name: seen[name] for name in given} == given, around
        assert not [name for name in seen if name.startswith(families)], around
        with pytest.raises(TopologyError, match="one of several processes on this node"):
            pytest.fail(f"{around}: read as {detect(seen)}")


def test_the_rest_of_the_agents_environment_is_kept_and_its_own_secret_is_not() -> None:
    variables = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "",
        "NCCL_DEBUG": "INFO",
        "PLATFORM_LAUNCH_SECRET": "of the launchers' rendezvous",
        "PROCGUARD_JOIN_TOKEN": "s",
        "PROCGUARD_TOKEN": "t",
    }
    seen = training_variables(Environment(variables), order({"RANK": "0"}), RUN)
    assert seen == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "",  # a word to CUDA: no GPU
        "NCCL_DEBUG": "INFO",
        "PLATFORM_LAUNCH_SECRET": "of the launchers' rendezvous",
        "RANK": "0",
        "PROCGUARD_RUN": RUN,
        "PYTHONUNBUFFERED": "1",
    }
    changed = training_variables(
        Environment({"PYTHONUNBUFFERED": "0", "NCCL_DEBUG": "WARN"}),
        order({"RANK": "0"}, NCCL_DEBUG="INFO", RANK="9"),
        RUN,
    )
    assert (changed["PYTHONUNBUFFERED"], changed["NCCL_DEBUG"], changed["RANK"]) == ("0", "INFO", "0")


@pytest.mark.parametrize(
    ("command", "patterns", "allowed"),
    [
        (("python", "train.py"), ["python train.py"], True),
        (("python", "train.py", "--lr", "1"), ["python train.py"], False),
        (("python", "train.py", "--lr", "1"), ["python train.py *"], True),
        (("python", "train.py"), ["python train.py *"], True),
        (("python", "train.pyx"), ["python train.py *"], False),
        (("python",), ["python train.py *"], False),
        (("/tmp/python", "train.py"), ["python train.py"], False),
        (("sh", "-c", "python train.py"), ["python train.py *"], False),
        (("python", "two words"), ["python 'two words'"], True),
        (("python", "two", "words"), ["python 'two words'"], False),
        (("python", "anything"), ["python *.py"], False),
        (("python", "*"), ["python *"], True),
        (("b",), ["a", "b"], True),
        (("b",), [], False),
    ],
)
def test_allowed_commands_are_compared_word_by_word(
    command: tuple[str, ...], patterns: list[str], allowed: bool
) -> None:
    assert is_allowed(command, patterns) is allowed


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("train",), "is not in this agent's PATH"),
        (("./train.sh",), "is not executable: chmod"),
        (("./",), "no program "),
        (("a\0b",), "zero byte"),
    ],
)
def test_what_cannot_start_says_what_to_do(command: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    order = WorkerOrder(action=OrderAction.PREPARE, generation=1, command=command)
    found = why_not(order, allowed=None, directory=tmp_path, path=str(tmp_path))
    gone = why_not(order, allowed=None, directory=tmp_path / "gone", path="")
    assert found
    assert gone
    assert reason in english(found)
    assert gone.code in ("zero-byte-in-command", "directory-missing")


@pytest.mark.parametrize(
    ("command", "path", "holders"),
    [
        ("train", "/opt/\u8bad\u7ec3/bin:" * 3_000, 0),
        ("/" + "\u8bad" * 4_000, "", 0),
        ("./" + "x" * 300, "", 0),
        ("true", "/bin:/usr/bin", 345),
    ],
    ids=["long PATH", "long path", "long name", "many forks hold the port"],
)
def test_no_reason_is_too_long_for_an_agents_own_report(
    command: str, path: str, holders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tuple(f"pid {pid} (python train.py --{'x' * 60})" for pid in range(1000, 1000 + holders))
    taken = Port(29500, os.strerror(errno.EADDRINUSE), True, held)
    monkeypatch.setattr(ports, "probe", lambda _: taken)
    wanted = WorkerOrder(action=OrderAction.PREPARE, generation=1, command=(command,), check_port=29500)
    found = why_not(wanted, allowed=None, directory=tmp_path, path=path)
    assert found
    assert len(english(found)) < 4_000
    report = WorkerReport(number=0, state=WorkerState.REFUSED, reason=english(found), reason_sentence=found)
    assert report.reason_sentence == found


def test_a_program_is_found_as_it_will_be_started(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "train"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for command in ("train", "bin/train", str(program)):
        order = WorkerOrder(action=OrderAction.PREPARE, generation=1, command=(command,))
        assert why_not(order, allowed=None, directory=tmp_path, path=str(program.parent)) is None


def test_gpus_are_shared_out() -> None:
    assert [share("abcd", worker, 4) for worker in range(4)] == [("a",), ("b",), ("c",), ("d",)]
    assert [share("abcdefgh", worker, 2) for worker in range(2)] == [tuple("abcd"), tuple("efgh")]
    assert [share("abc", worker, 2) for worker in range(2)] == [("a",), ("b", "c")]
    assert [share("ab", worker, 4) for worker in range(4)] == [("a",), ("a",), ("b",), ("b",)]
    assert share("", 0, 1) == ()


def test_variables_and_a_directory_are_for_agents_that_run_any_command(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()

    def reason(allowed: tuple[str, ...] | None, **about: object) -> str:
        wanted = WorkerOrder(action=OrderAction.PREPARE, generation=7, command=("true",)).model_copy(
            update=about
        )
        found = why_not(wanted, allowed=allowed, directory=tmp_path, path="/usr/bin:/bin")
        return english(found) if found else ""

    assert reason(None, variables={"NCCL_DEBUG": "INFO"}, directory="project") == ""
    assert "limited to commands" in reason(("true",), variables={"LD_PRELOAD": "/tmp/x.so"})
    assert "limited to commands" in reason(("true",), directory="project")
    assert "is missing" in reason(None, directory="elsewhere")
    assert "is not in this agent's PATH" in reason(None, variables={"PATH": "/nowhere"})
    assert "cannot be set as variables" in reason(None, variables={"A=B": "1"})
