from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from platform_launch.cli import launch_options
from platform_launch.cli.run import command
from platform_launch.environment import Environment
from platform_launch.plan.observation import observation_variables
from platform_launch.plan.request import Request


def test_hook_stands_before_what_the_user_put_on_the_path() -> None:
    path, folder = observation_variables(Environment({"PYTHONPATH": "/mine:/yours"}), "/tmp/private")
    hook, *rest = path.value.split(":")
    assert (Path(hook) / "sitecustomize.py").is_file()
    assert rest == ["/mine", "/yours"]
    assert "what was set follows" in path.reason
    assert (folder.name, folder.value) == ("PLATFORM_LAUNCH_OBSERVE", "/tmp/private")


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": ""}])
def test_empty_path_does_not_come_to_mean_the_working_directory(variables: dict[str, str]) -> None:
    path, _ = observation_variables(Environment(variables), "/tmp/private")
    assert ":" not in path.value


def test_snapshots_of_memory_are_written_only_if_asked_for() -> None:
    *_, snapshot = observation_variables(Environment({}), "/tmp/private", snapshots="/logs/memory_rank")
    assert (snapshot.name, snapshot.value) == ("PLATFORM_LAUNCH_MEMORY_SNAPSHOT", "/logs/memory_rank")
    assert len(observation_variables(Environment({}), "/tmp/private")) == 2


def test_no_observe_adds_nothing() -> None:
    assert observation_variables(Environment({}), None) == []
    for flags, observed in ((["--no-observe"], False), ([], True)):
        context = command.make_context("run", flags)
        with context:
            context.meta["arguments"] = ()
            values = dict(context.params)
            known = {field.name for field in dataclasses.fields(Request)} | {"no_observe"}
            topology = ("platform", "nnodes", "node_rank", "master_addr", "master_port", "nproc_per_node")
            request = launch_options.request(
                {name: value for name, value in values.items() if name in known or name in topology}
            )
        assert (request.observe_folder is not None) is observed
