"""The tables of workers and nodes: a hundred rows a page, filtered and sorted over all there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from platform_launch.procguard.api.shapes.groups import GroupSettings, NewGroup
from platform_launch.procguard.api.shapes.workers import WorkerStatus
from platform_launch.procguard.api.wire import (
    GpuReport,
    Heartbeat,
    JoinRequest,
    MachineReport,
    WorkerReport,
    WorkerState,
)
from platform_launch.procguard.web.listing import totals
from tests.procguard.serving import Served, served

NODES = 130
LAST = "n129"
"""Far from the first page by name, first by every measure."""


def beat(server: Served, number: int, *, state: WorkerState = WorkerState.IDLE) -> None:
    busy = 90.0 if number == NODES - 1 else 1.0 + number / 100
    gpu = GpuReport(index=0, utilization_percent=busy, memory_used_gib=1, memory_total_gib=80)
    report = WorkerReport(number=0, state=state, generation=1, exit_code=1, gpus=(gpu,))
    machine = MachineReport(cpu_percent=busy, memory_used_gib=busy, memory_total_gib=100)
    said = Heartbeat(node=f"n{number}", instance=f"instance-{number}", machine=machine, workers=(report,))
    server.parts.control.heartbeat(said.node, said)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("many")
    with served(folder / "data") as server:
        # The server's clock stands still: on a slow machine the nodes would fall silent while the tests look.
        clock_s = server.parts.control._clock.clock_s()
        server.parts.control._clock.clock_s = lambda: clock_s
        for number in range(NODES):
            instance = f"instance-{number}"
            join = JoinRequest(node=f"n{number}", instance=instance, workers=1, hostname=f"host{number}")
            server.parts.control.join(join)
            beat(server, number, state=WorkerState.EXITED if number == 120 else WorkerState.IDLE)
        server.parts.control.create_group(NewGroup(name="g", settings=GroupSettings()), "op")
        server.parts.control.move(["n7-0", "n128-0"], "g", "op")
        yield server.person()


def rows(client: httpx.Client, path: str, mark: str) -> list[str]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return re.findall(rf'<tr id="{mark}-([^"]+)"', answer.text)


def test_nodes_stand_by_name_a_hundred_a_page(many: httpx.Client) -> None:
    assert rows(many, "/fragments/nodes", "n") == [f"n{number}" for number in range(100)]
    assert rows(many, "/fragments/nodes?page=2", "n") == [f"n{number}" for number in range(100, NODES)]
    assert rows(many, "/nodes?page=9", "n") == [f"n{number}" for number in range(100, NODES)], "the nearest"


@pytest.mark.parametrize("sort", ["gpu", "cpu", "memory"])
def test_nodes_are_sorted_over_all_pages(many: httpx.Client, sort: str) -> None:
    descending = [LAST, *(f"n{number}" for number in range(NODES - 2, -1, -1))]
    assert rows(many, f"/fragments/nodes?sort={sort}", "n") == descending[:100]
    assert rows(many, f"/fragments/nodes?sort={sort}&page=2", "n") == descending[100:]


def test_nodes_are_found_on_every_page(many: httpx.Client) -> None:
    assert rows(many, "/fragments/nodes?text=HOST11", "n") == ["n11", *(f"n{n}" for n in range(110, 120))]
    assert rows(many, "/fragments/nodes?text=g", "n") == ["n7", "n128"], "by the group of its workers"
    assert rows(many, "/fragments/nodes?state=failed", "n") == ["n120"]
    assert rows(many, "/fragments/nodes?state=failed&text=n7", "n") == []
    assert len(rows(many, "/fragments/nodes?state=free&page=2", "n")) == NODES - 100


def test_workers_are_found_on_every_page(many: httpx.Client) -> None:
    assert rows(many, "/fragments/workers?page=2", "w") == [f"n{number}-0" for number in range(100, NODES)]
    assert rows(many, "/fragments/workers?group=g", "w") == ["n7-0", "n128-0"]
    assert rows(many, "/fragments/workers?state=failed", "w") == ["n120-0"]
    assert rows(many, "/fragments/workers?text=host12&state=idle&page=1", "w")[:2] == ["n12-0", "n121-0"]
    assert len(many.get("/fragments/names").json()) == NODES, "what is ticked by one click"


@pytest.mark.parametrize(
    ("fragment", "query", "address"),
    [
        ("nodes", "text=n1&state=&sort=cpu&page=1", "/nodes?text=n1&sort=cpu"),
        ("nodes", "text=&page=2", "/nodes?page=2"),
        ("workers", "text=&group=g&state=idle&page=1", "/?state=idle&group=g"),
        ("workers", "text=&page=1", "/"),
    ],
)
def test_what_a_filter_chose_stays_in_the_address(
    many: httpx.Client, fragment: str, query: str, address: str
) -> None:
    path = f"/fragments/{fragment}?{query}"
    assert many.get(path, headers={"HX-Trigger": "filter"}).headers["HX-Replace-Url"] == address
    assert "HX-Replace-Url" not in many.get(path).headers, "what is only fetched again changes no address"


def test_totals_count_all_nodes(many: httpx.Client) -> None:
    seen = many.get("/fragments/totals").text
    assert f">{NODES}</a>" in seen
    assert f"{NODES - 1} " in seen, "workers that are idle"


def test_gpus_of_silent_nodes_are_neither_busy_nor_free() -> None:
    def node(status: WorkerStatus, *, silent: bool = False) -> Any:
        report = SimpleNamespace(gpus=[SimpleNamespace(index=0), SimpleNamespace(index=1)])
        worker = SimpleNamespace(status=status, report=report)
        entry = SimpleNamespace(node=SimpleNamespace(drained_by=""), quarantine=None)
        return SimpleNamespace(workers=[worker], silent=silent, entry=entry)

    nodes = [node(WorkerStatus.RUNNING), node(WorkerStatus.IDLE), node(WorkerStatus.SILENT, silent=True)]
    found = totals(nodes)
    assert (found.gpus, found.busy_gpus, found.free_gpus, found.silent_gpus) == (6, 2, 2, 2)
