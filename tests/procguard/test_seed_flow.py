"""From an empty page to a finished training, as a person does it: real hosts, agents, browser and DDP."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.lab.browser import requires_chromium
from tests.lab.netns import requires_netns
from tests.lab.waiting import LIMIT_S
from tests.procguard import trainee
from tests.procguard.hosts_lab import Site, site

ROOT = Path(__file__).parents[2]
NODES = ("gn6", "gn7", "gn39", "gn40")
LIMIT_MS = LIMIT_S * 1000
Place = tuple[str, int, int, int]
# The tables of the seed: worker, RANK, LOCAL_RANK, NODE_RANK.
FOUR_NODES = [("gn6-0", 0, 0, 0), ("gn39-0", 1, 0, 1), ("gn40-0", 2, 0, 2), ("gn7-0", 3, 0, 3)]
TWO_NODES = [("gn6-0", 0, 0, 0), ("gn6-1", 1, 1, 0), ("gn7-0", 2, 0, 1), ("gn7-1", 3, 1, 1)]
FEW_STEPS = ("--steps", "4", "--log-every", "2", "--global-batch", "32")

pytestmark = [
    requires_netns,
    requires_chromium,
    pytest.mark.train,
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    expect.set_options(timeout=LIMIT_MS)
    with site(NODES, tmp_path_factory.mktemp("site")) as made:
        for folder in made.nodes.values():
            (folder / "data").mkdir()
            (folder / "data" / "images.txt").write_text("drawn\n")
        yield made


@pytest.fixture
def page(cluster: Site) -> Iterator[Page]:
    with cluster.operator() as page:
        yield page


def make_group(page: Page, name: str, workers: Sequence[str]) -> None:
    """Create a group, tick workers, move them to it and open its settings."""
    page.get_by_role("button", name="New group").click()
    page.get_by_label("Name of the group").fill(name)
    page.get_by_role("button", name="Create group").click()
    for worker in workers:
        page.get_by_role("checkbox", name=f"Select {worker}", exact=True).check()
    expect(page.get_by_text(f"{len(workers)} selected")).to_be_visible()
    page.get_by_role("button", name="Move to").click()
    page.get_by_role("dialog").get_by_role("button", name=name).click()
    card = page.get_by_role("article").filter(has_text=name)
    expect(card).to_contain_text(f"{len(workers)} workers")
    card.get_by_role("link", name="Settings").click()


def expect_ranks(page: Page, places: Sequence[Place]) -> None:
    """Wait until the rank table is so."""
    rows = page.get_by_role("group", name="Rank table").last.locator("tbody").get_by_role("row")
    cells = [f"{rank}{worker}{local_rank}{node_rank}" for worker, rank, local_rank, node_rank in places]
    expect(rows).to_have_text(cells)


def start(page: Page) -> None:
    page.get_by_role("button", name="Save settings").click()
    expect(page.get_by_text("Settings saved.")).to_be_visible()
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_role("link", name="Workers", exact=True).click()


def expect_phase(page: Page, phase: str) -> None:
    """Wait until the group is in a phase; a failure is shown at once instead."""
    section = page.locator("#group")
    badge = section.get_by_text("Finished", exact=True).or_(section.get_by_text("Failed", exact=True))
    expect(badge).to_be_visible()
    assert badge.inner_text() == phase, section.inner_text()


def expect_log(page: Page, worker: str, *texts: str) -> None:
    """Open a worker's log from its group, look for texts and go back."""
    page.get_by_role("link", name=f"Log of {worker}", exact=True).click()
    for text in texts:
        expect(page.get_by_role("group", name=f"Log of {worker}").last).to_contain_text(text)
    page.go_back()


MEETS = shlex.join([sys.executable, trainee.__file__])
TRAINS = f"{MEETS} {shlex.join(FEW_STEPS)} --checkpoint two.pt"


@pytest.mark.nightly
def test_four_nodes_of_one_worker_meet(page: Page) -> None:
    make_group(page, "four", ["gn6-0", "gn7-0", "gn39-0", "gn40-0"])
    page.get_by_label("Master address").fill("gn6")
    page.get_by_label("World Size").fill("4")
    page.get_by_label("Backend").select_option("gloo")
    page.get_by_label("Command").fill(MEETS)
    expect_ranks(page, FOUR_NODES)
    expect(page.get_by_label("Master port")).to_have_value("29500")
    start(page)
    expect_phase(page, "Finished")
    for worker, rank, _, _ in FOUR_NODES:
        said = f"[Rank {rank}] World Size: 4, Local Rank: 0, Master Addr: gn6"
        expect_log(page, worker, said, "met [0, 1, 2, 3]")


@pytest.mark.nightly
def test_two_nodes_of_two_workers_name_the_one_that_failed_and_train_once_it_is_mended(
    page: Page, cluster: Site
) -> None:
    make_group(page, "two", [worker for worker, *_ in TWO_NODES])
    page.get_by_label("Master address").fill("gn6")
    page.get_by_label("Backend").select_option("gloo")
    page.get_by_label("Command").fill(TRAINS)
    expect_ranks(page, TWO_NODES)
    data = cluster.nodes["gn7"] / "data"
    data.rename(data.with_name("not-mounted"))
    start(page)
    expect_phase(page, "Failed")
    told = page.locator("#group")
    expect(told).to_contain_text("gn7-0 failed first: ended with exit code 3")
    expect(told).to_contain_text("a file or folder does not exist")
    expect(told).to_contain_text("data/images.txt")
    expect(page.get_by_role("row").filter(has_text="gn7-0").filter(has_text="code 3")).to_be_visible()
    page.get_by_role("link", name="Read the log of gn7-0").click()
    expect(page.get_by_role("group", name="Log of gn7-0").last).to_contain_text("FileNotFoundError")
    page.go_back()

    data.with_name("not-mounted").rename(data)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(told.get_by_text("Failed", exact=True)).to_be_hidden()
    expect_phase(page, "Finished")
    for worker, rank, local_rank, _ in TWO_NODES:
        said = f"[Rank {rank}] World Size: 4, Local Rank: {local_rank}, Master Addr: gn6"
        expect_log(page, worker, said)
    expect_log(page, "gn6-0", "processes: 4 on cpu", "Step 4/4", "held-out accuracy")


def test_a_launcher_on_each_of_two_nodes_meets_the_other(page: Page) -> None:
    make_group(page, "nodes", ("gn39-0", "gn40-0"))
    page.get_by_label("Master address").fill("gn40")
    page.get_by_label("A worker is").select_option("a node's launcher")
    words = [ROOT / "start_multinode_platform.sh", "--launcher", "python", "--script", trainee.__file__]
    page.get_by_label("Command").fill(shlex.join(map(str, words)))
    expect_ranks(page, [("gn40-0", 0, 0, 0), ("gn39-0", 1, 0, 1)])
    start(page)
    expect_phase(page, "Finished")
    expect_log(page, "gn40-0", "all 2 nodes are connected", "met [0, 1]")
    expect_log(page, "gn39-0", "this is worker node 1 of 2: joining gn40:29500", "met [0, 1]")
