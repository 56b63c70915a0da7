"""Nodes that nothing distinguishes take their ranks from a shared folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platform_launch.cli import main
from platform_launch.errors import InputError, NodesAbsentError, TopologyError
from platform_launch.rendezvous import ranks_from
from platform_launch.rendezvous.ranks_from import NodeIdentity, RankClaim, RankFolder
from tests.lab.port import reserved_port
from tests.lab.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
Take = Callable[..., RankClaim]
COMMAND = ("run", "--script", "train.py")


@pytest.fixture(autouse=True)
def soon_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_from, "_LEFT_OVER_S", 3.0)
    monkeypatch.setattr(ranks_from, "_COUNT_EVERY_S", 0.1)
    monkeypatch.setattr(ranks_from, "_LOOK_S", 0.02)


@pytest.fixture
def take(tmp_path: Path) -> Iterator[Take]:
    claims: list[RankClaim] = []

    def of(
        host: str,
        nnodes: int = 2,
        *,
        job: str = "job",
        command: tuple[str, ...] = COMMAND,
        wait_s: float = 60.0,
    ) -> RankClaim:
        me = NodeIdentity(host, f"{host}.address", command)
        claim = RankFolder(tmp_path, nnodes, job, lambda _: None).claim_rank(me, wait_s)
        claims.append(claim)
        return claim

    yield of
    for claim in claims:
        claim.release()


def together(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)


def test_nodes_that_start_together_get_distinct_ranks_and_one_master(take: Take) -> None:
    got: dict[int, str] = {}
    together(8, lambda index: got.update({(c := take(f"host{index}", 8)).node_rank: c.master_addr}))
    assert sorted(got) == list(range(8))
    assert len(set(got.values())) == 1


def test_nodes_get_distinct_ranks_in_the_folder_of_a_killed_run(take: Take, tmp_path: Path) -> None:
    for rank in range(8):
        for generation in (0, 3):
            old = {"host": "old", "address": "old", "job": "x", "nonce": f"{rank}{generation}", "count": 7}
            (tmp_path / f"job.rank-{rank}.{generation}").write_text(json.dumps(old))
    (tmp_path / "job.rank-1.9").write_bytes(b"\xff not a claim")
    (tmp_path / "job.rank-nonsense").touch()
    got: list[int] = []
    addresses = set()

    def start(index: int) -> None:
        claim = take(f"host{index}", 8)
        got.append(claim.node_rank)
        addresses.add(claim.master_addr)

    together(8, start)
    assert sorted(got) == list(range(8))
    assert len(addresses) == 1
    assert "old" not in addresses


def test_returning_node_gets_its_rank_again(take: Take) -> None:
    first = take("a")
    second = take("b")
    second.release()
    assert take("b-again").node_rank == 1
    assert first.node_rank == 0


def test_killed_node_gets_its_rank_again_once_its_claim_is_stale(take: Take) -> None:
    take("a")
    killed = take("b")
    killed._released.set()  # counts no more, and removes nothing
    assert take("b-again").node_rank == 1


def test_third_node_is_refused_and_the_other_two_are_named(take: Take) -> None:
    take("a")
    take("b")
    with pytest.raises(TopologyError, match=r"all 2 ranks are taken \(node 0 \('a'\), node 1 \('b'\)\)"):
        take("c")


def test_two_jobs_in_one_folder_need_different_names(take: Take) -> None:
    assert take("a", job="one").node_rank == 0
    assert take("b", job="two").node_rank == 0
    with pytest.raises(TopologyError, match="'a' runs another job there"):
        take("c", job="one", command=("run", "--script", "other.py"))


def test_without_node_0_the_others_stop_and_leave_no_files(take: Take, tmp_path: Path) -> None:
    (tmp_path / "job.rank-0.0").write_text("{}")
    with pytest.raises(NodesAbsentError, match="no node has rank 0"):
        take("b", wait_s=0.3)
    assert [path.name for path in tmp_path.iterdir()] == ["job.rank-0.0"]


def test_missing_or_read_only_folder_is_refused(tmp_path: Path) -> None:
    me = NodeIdentity("a", "a", COMMAND)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        RankFolder(tmp_path / "nowhere", 2, "job", lambda _: None).claim_rank(me, 1)


def test_two_equal_commands_become_two_nodes_of_one_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os; e = os.environ; print('RANK', e['NODE_RANK'], 'OF', e['NNODES'])")
    argv: list[str | Path] = [
        *(
            sys.executable,
            "-m",
            "platform_launch",
            "run",
            "--ranks-from",
            tmp_path / "ranks",
            "--nnodes",
            "2",
        ),
        *("--launcher", "python", "--script", script, "--log-dir", tmp_path / "logs"),
    ]
    (tmp_path / "ranks").mkdir()
    with reserved_port() as port:
        argv += ["--master-port", str(port)]
        nodes = [
            subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)
        ]
        said = "".join(node.communicate(timeout=LIMIT_S)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "RANK 0 OF 2" in said
    assert "RANK 1 OF 2" in said
    assert list((tmp_path / "ranks").iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ((), "--ranks-from without --nnodes"),
        (("--nnodes", "2", "--node-rank", "1"), "cannot be combined with --node-rank or --master-addr"),
        (("--nnodes", "2", "--print-env"), "--print-env changes nothing"),
    ],
)
def test_conflicting_flags_are_refused(
    flags: tuple[str, ...], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--ranks-from", ".", *flags]) == 64
    assert wrong in capsys.readouterr().err


def test_claim_is_not_written_through_a_symlink(take: Take, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    claim = take("a")
    claim.path.unlink()
    claim.path.symlink_to(precious)
    time.sleep(0.5)  # several times as long as it takes to count
    hard = claim.path.with_name("hard")
    os.link(precious, hard)
    hard.replace(claim.path)
    time.sleep(0.5)
    assert precious.read_text() == "mine\n"


def test_pipe_instead_of_a_claim_blocks_no_node(take: Take, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.rank-0.1")
    with pytest.raises(NodesAbsentError):  # at its limit
        take("a", wait_s=1.0)
