"""The roll call on real hosts: missing and wrong nodes are named on every node."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.errors import HardwareError, NodesAbsentError, NodesDisagreeError, TopologyError
from platform_launch.rendezvous.listening import candidates
from tests.conftest import FakeNvml
from tests.lab.netns import Host, hosts, requires_netns
from tests.lab.nvml import fake
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.cluster import ROOT, kill_everything, start
from tests.rendezvous.other_build import other_build

pytestmark = requires_netns

ABSENT = NodesAbsentError.exit_code


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Host, ...]]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def machines(network: tuple[Host, ...]) -> Iterator[tuple[Host, ...]]:
    """The same hosts for every test, cleaned up in between."""
    yield network
    for host in network:
        kill_everything(host)


def test_all_nodes_join_and_train(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = [start(machines[rank], rank, 2, "print:trained", logs=tmp_path) for rank in range(2)]
    assert [node.code() for node in nodes] == [0, 0], nodes[0].text
    for node in nodes:
        assert node.said("roll call: all 2 nodes are connected, and their configurations match")
        assert node.said("trained")


def test_different_launcher_versions_are_reported_on_all_nodes(
    machines: tuple[Host, ...], tmp_path: Path
) -> None:
    other = other_build(tmp_path / "other")
    builds = [ROOT, other, ROOT]
    nodes = [start(machines[rank], rank, 3, logs=tmp_path, build=builds[rank]) for rank in range(3)]
    assert [node.code() for node in nodes] == [NodesDisagreeError.exit_code] * 3, nodes[0].text
    for node in nodes:
        assert re.search(
            r"the launchers do not understand each other: version \S+ \(protocol \w+\) on node 1 "
            r"\(node1 \(\S+\)\), version \S+ \(protocol \w+\) on node 0 \(node0 \(\S+\)\)",
            node.text,
        ), node.text
        assert node.said("use one image, or one version of platform-launch, on all nodes")


def test_nodes_with_an_intended_difference_start_with_a_warning(
    machines: tuple[Host, ...], tmp_path: Path
) -> None:
    nodes = [
        start(machines[rank], rank, 2, logs=tmp_path, env={"NCCL_IB_TC": "106"} if rank else {})
        for rank in range(2)
    ]
    assert [node.code() for node in nodes] == [0, 0], nodes[0].text
    for node in nodes:
        assert node.said("[WARN] nodes differ: $NCCL_IB_TC: not set on node 0; 106 on node 1")
        assert node.said("all 2 nodes are connected, with the differences listed above; starting training")


def test_an_absent_node_is_named_on_every_node(machines: tuple[Host, ...], tmp_path: Path) -> None:
    coming = start(machines[1], 1, 3, logs=tmp_path)
    coming.when("refuses the connection")  # so that no time of node 0's is spent on its start
    nodes = [start(machines[0], 0, 3, logs=tmp_path, options=("--roll-call-timeout", "8")), coming]
    assert [node.code() for node in nodes] == [ABSENT, ABSENT], nodes[0].text
    assert re.search(
        r"\[INFO\] still waiting after \d+ s: 1 of 3 nodes missing: node 2; never connected", nodes[0].text
    )
    for node, limit_s in zip(nodes, (8, 600), strict=True):
        assert node.said(
            f"roll call: waiting at most {limit_s} s for 3 nodes at node0:{candidates(29500)[0]}"
        )
        assert node.said("error: 1 of 3 nodes missing: node 2; never connected; gave up after 8 s")


def test_unknown_master_name_is_reported_immediately(machines: tuple[Host, ...], tmp_path: Path) -> None:
    node = start(
        machines[1],
        1,
        2,
        logs=tmp_path,
        options=("--roll-call-timeout", "3"),
        env={"MASTER_ADDR": "nowhere.invalid"},
    )
    problem = "no name server has answered for 'nowhere.invalid' yet"  # none runs there
    node.when(problem)
    assert node.code() == ABSENT
    assert node.said(f"error: node 0 was not reached in 3 s: {problem}")


def test_launcher_waits_for_a_name_that_appears_later(machines: tuple[Host, ...], tmp_path: Path) -> None:
    names = machines[1].etc / "hosts"
    known = names.read_text()
    late = {"MASTER_ADDR": "late-master"}
    for machine in machines[:2]:
        (machine.etc / "hosts").write_text(known)
    try:
        (machines[0].etc / "hosts").write_text(f"{known}{machines[0].address} late-master\n")
        nodes = [start(machines[rank], rank, 2, logs=tmp_path, env=late) for rank in range(2)]
        nodes[1].when("no name server has answered")
        # The file that the host sees stays the same one: it is bound over /etc/hosts.
        with names.open("a") as file:
            file.write(f"{machines[0].address} late-master\n")
        assert [node.code() for node in nodes] == [0, 0], nodes[1].text
    finally:
        for machine in machines[:2]:
            (machine.etc / "hosts").write_text(known)


def test_refused_connection_is_distinguished_from_silence(machines: tuple[Host, ...], tmp_path: Path) -> None:
    options = ("--roll-call-timeout", "2")
    node = start(machines[1], 1, 2, logs=tmp_path, options=options)
    node.when(f"node0:{candidates(29500)[0]} (10.213.0.1) refuses the connection: nothing listens there")
    assert node.code() == ABSENT


def test_cut_link_before_the_roll_call_is_reported_on_both_sides(
    machines: tuple[Host, ...], tmp_path: Path
) -> None:
    options = ("--roll-call-timeout", "3")
    machines[1].cut()
    try:
        nodes = [start(machines[rank], rank, 2, logs=tmp_path, options=options) for rank in range(2)]
        assert [node.code() for node in nodes] == [ABSENT, ABSENT]
        assert nodes[1].said("does not answer: the packets are lost on the way"), nodes[1].text
        assert nodes[0].said("1 of 2 nodes missing: node 1; never connected"), nodes[0].text
    finally:
        machines[1].heal()


def test_waiting_node_reconnects_after_losing_its_link(machines: tuple[Host, ...], tmp_path: Path) -> None:
    options = ("--node-timeout", "3")
    nodes = [start(machines[rank], rank, 3, logs=tmp_path, options=options) for rank in range(2)]
    nodes[0].when("1 of 3 nodes missing: node 2; never connected")
    nodes[1].when("connected to node 0, still waiting after ")
    machines[1].cut()
    try:
        nodes[1].when("node 0 has not answered for")
        nodes[0].when("2 of 3 nodes missing: node 1, node 2; last heard from node 1 ")
        nodes.append(start(machines[2], 2, 3, logs=tmp_path, options=options))
    finally:
        machines[1].heal()
    assert [node.code() for node in nodes] == [0, 0, 0], nodes[1].text


@pytest.mark.parametrize(
    ("port", "name", "code"), [(29500, "MASTER_PORT", ABSENT), (candidates(29500)[0], "port", 0)]
)
def test_port_in_use_is_reported_with_its_owner(
    machines: tuple[Host, ...], tmp_path: Path, port: int, name: str, code: int
) -> None:
    hold = f"import socket, time; s = socket.create_server(('', {port})); print('held'); time.sleep(60)"
    holder = machines[0].popen([sys.executable, "-u", "-c", hold])
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        nodes = [start(machines[rank], rank, 2, logs=tmp_path) for rank in range(2)]
        assert [node.code() for node in nodes] == [code, code], nodes[0].text
        assert nodes[0].said(f"{name} {port}")
        assert nodes[0].said(f"pid {holder.pid} ({sys.executable} -u -c import socket")
        if code:
            assert nodes[1].said(f"pid {holder.pid}"), nodes[1].text
    finally:
        holder.kill()
        holder.communicate(timeout=LIMIT_S)


def test_different_numbers_of_gpus_are_refused_with_a_table(
    machines: tuple[Host, ...], tmp_path: Path, fake_nvml: FakeNvml
) -> None:
    nodes = [
        start(machines[rank], rank, 3, logs=tmp_path, env=fake_nvml(*fake.h100s(count)))
        for rank, count in enumerate((8, 8, 7))
    ]
    codes = [node.code() for node in nodes]
    assert codes == [NodesDisagreeError.exit_code] * 3, nodes[0].text
    for node in nodes:
        assert node.said("the nodes disagree: processes per node: 8 on node 0, node 1; 7 on node 2"), (
            node.text
        )
    table = [re.sub(r"^\[node 0\] [0-9:]{8} \[INFO\] ", "", line) for _, line in nodes[0].lines]
    header = next(index for index, line in enumerate(table) if line.startswith("differs"))
    assert table[header + 1].split() == ["processes", "per", "node", "yes", "8", "0-1"]
    assert table[header + 2].split() == ["7", "2"]


def test_two_nodes_with_one_rank_are_named(machines: tuple[Host, ...], tmp_path: Path) -> None:
    nodes = [
        start(machine, rank, 3, logs=tmp_path / machine.name)
        for machine, rank in zip(machines, (0, 1, 1), strict=True)
    ]
    assert [node.code() for node in nodes] == [TopologyError.exit_code] * 3, nodes[0].text
    for node in nodes:
        assert node.said("two nodes have rank 1: "), node.text
        assert node.said("node1 (10.213.0.2)")
        assert node.said("node2 (10.213.0.3)")


def test_master_address_of_another_machine_is_reported_on_node_0(
    machines: tuple[Host, ...], tmp_path: Path
) -> None:
    """Two jobs: where one connects, nothing listens; where the other connects, a process never answers."""
    ports = {port: candidates(int(port))[0] for port in ("29500", "29600")}
    mute = (
        f"import socket, time; s = socket.create_server(('', {ports['29600']})); "
        "print('open', flush=True); input()"
    )
    with machines[2].popen([sys.executable, "-c", mute], stdin=subprocess.PIPE) as listening:
        assert listening.stdout is not None
        listening.stdout.readline()
        jobs = []
        # To be sure that one is mute takes seconds; for a node that sees nothing else one try is enough.
        for port, limits_s in (("29500", ("8", "2")), ("29600", ("14", "2"))):
            wrong = {"MASTER_ADDR": machines[2].address, "MASTER_PORT": port}
            jobs.append(
                [
                    start(
                        host, rank, 2, logs=tmp_path / port, options=("--roll-call-timeout", limit), env=wrong
                    )
                    for rank, (host, limit) in enumerate(zip(machines, limits_s, strict=False))
                ]
            )
        codes = [node.code() for nodes in jobs for node in nodes]
        listening.kill()
    assert codes == [ABSENT] * 4
    problem = (
        "which is not this machine, node0 (10.213.0.1), although it is node 0: others look for node 0 there"
    )
    for (node0, _), address in zip(jobs, (f"10.213.0.3:{port}" for port in ports.values()), strict=True):
        assert any("[WARN]" in line and problem in line for _, line in node0.lines), node0.text
        assert any("error: 1 of 2 nodes missing" in line and problem in line for _, line in node0.lines), (
            node0.text
        )
        assert node0.said("hint:  set MASTER_ADDR to the name or address of node 0")
        assert node0.said(f"for 2 nodes at {address}")
    assert jobs[0][1].said(f"10.213.0.3:{ports['29500']} refuses the connection"), jobs[0][1].text
    mute_said = f"10.213.0.3:{ports['29600']} (10.213.0.3) accepts connections, but no rendezvous"
    assert jobs[1][1].said(mute_said), jobs[1][1].text


def test_node_that_cannot_start_informs_the_others(
    machines: tuple[Host, ...], tmp_path: Path, fake_nvml: FakeNvml
) -> None:
    broken = fake_nvml(*fake.h100s(8), fake.fail("nvmlDeviceGetHandleByIndex_v2", 15, 3))
    healthy = fake_nvml(*fake.h100s(8))
    nodes = [
        start(machines[rank], rank, 2, logs=tmp_path, env=variables)
        for rank, variables in enumerate((healthy, broken))
    ]
    codes = [node.code() for node in nodes]
    assert codes == [HardwareError.exit_code] * 2, nodes[0].text + nodes[1].text
    assert nodes[0].said("error: node 1, node1, cannot start: GPU 3 answered"), nodes[0].text


def test_stop_request_while_waiting_is_obeyed_immediately(machines: tuple[Host, ...], tmp_path: Path) -> None:
    node = start(machines[0], 0, 2, logs=tmp_path)
    node.when("1 of 2 nodes missing: node 1")
    node.process.terminate()
    assert node.code() == 143


_NAME_SERVER = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
address = bytes(map(int, sys.argv[1].split(".")))
while True:
    question, asker = server.recvfrom(512)
    print(question, flush=True)
    end = question.index(b"\\0", 12) + 5
    known = b"node0" in question and question[end - 4:end - 2] == b"\\0\\1"
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x05\\0\\4" + address if known else b""
    head = question[:2] + (b"\\x81\\x80" if b"node0" in question else b"\\x81\\x83")
    head += b"\\0\\1\\0" + bytes([known]) + b"\\0\\0\\0\\0"
    server.sendto(head + question[12:end] + answer, asker)
"""


def test_name_server_is_queried_for_node_0_only(machines: tuple[Host, ...], tmp_path: Path) -> None:
    """The store would wait for the answer each time, one after the other."""
    files = {machine: (machine.etc / "hosts").read_text() for machine in machines[:2]}
    servers = []
    try:
        for machine in files:
            (machine.etc / "hosts").write_text("127.0.0.1 localhost\n")
            servers.append(machine.popen([sys.executable, "-c", _NAME_SERVER, machines[0].address]))
        nodes = [start(machines[rank], rank, 2, logs=tmp_path) for rank in range(2)]
        assert [node.code() for node in nodes] == [0, 0], nodes[1].text
    finally:
        asked = []
        for server in servers:
            server.kill()
            asked.append(server.communicate()[0])
        for machine, names in files.items():
            (machine.etc / "hosts").write_text(names)
    assert all("node0" in questions for questions in asked)
    assert not any("in-addr" in questions for questions in asked), asked


def test_silent_name_server_does_not_prevent_the_start(machines: tuple[Host, ...], tmp_path: Path) -> None:
    """TCPStore asks for the name of the host it connects to, and that question may never be answered."""
    files = {
        machine: ((machine.etc / "hosts").read_text(), machine.etc / "resolv.conf")
        for machine in machines[:2]
    }
    for machine, (_, resolver) in files.items():
        (machine.etc / "hosts").write_text("127.0.0.1 localhost\n")
        # Nobody: a resolver that is left alone asks them for longer than any connection may take to open.
        resolver.write_text(
            "nameserver 10.213.0.250\nnameserver 10.213.0.251\noptions timeout:30 attempts:2\n"
        )
    try:
        address = {"MASTER_ADDR": machines[0].address}
        nodes = [start(machines[rank], rank, 2, logs=tmp_path, env=address) for rank in range(2)]
        assert [node.code() for node in nodes] == [0, 0], nodes[1].text
    finally:
        for machine, (names, resolver) in files.items():
            (machine.etc / "hosts").write_text(names)
            resolver.write_text("nameserver 127.0.0.1\n")
