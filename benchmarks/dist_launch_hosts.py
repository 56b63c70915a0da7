"""One command on 64 hosts: dist-launch beside pdsh and clush, with new connections and with kept ones.

Hosts are network namespaces of this machine, each with an SSH server. The peers run at their best: as many
at once as there are hosts, the quick key exchange, and ControlMaster for kept connections. dist-launch has
its broker, which rank 0's wait starts. Then every host prints 10 MB: no line may be lost or mixed.

    python benchmarks/dist_launch_hosts.py [HOSTS]     needs root, iproute2, openssh-server, pdsh or clush
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncssh

from platform_launch import helper
from platform_launch.dist_launch import sshd
from platform_launch.dist_launch.cluster import ClusterMember, WaitingCluster, write_cluster
from platform_launch.dist_launch.cluster_keys import authorized_line, known_hosts, two_words
from platform_launch.dist_launch.folder import WaitFolder, write_private
from tests.lab.netns import Host, hosts

ROOT = Path(__file__).resolve().parents[1]
RUNS = 5
MEGABYTES = 10
DIST_LAUNCH = [
    sys.executable,
    "-c",
    "import sys; from platform_launch.cli.dist_launch import main; sys.exit(main())",
]


def main() -> int:
    """Build the hosts and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hosts", nargs="?", type=int, default=64, help="default: %(default)s")
    number = parser.parse_args().hosts
    missing = [
        tool
        for tool in ("ip", "sshd", "ssh")
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]
    if os.geteuid() != 0 or missing:
        print(f"skipped: needs root and {', '.join(missing) or 'nothing else'}")
        return 0
    with tempfile.TemporaryDirectory() as folder, hosts(number) as made:
        return compare(Lab(made, Path(folder)), number)


class Lab:
    """Hosts with SSH servers, a key that opens them, and what is needed to reach them."""

    def __init__(self, made: tuple[Host, ...], path: Path) -> None:
        self.made = made
        self.path = path
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.key = path / "id"
        write_private(self.key, key.export_private_key("openssh").decode())
        public = two_words(key.export_public_key("openssh"))
        self.servers = []
        members = []
        for rank, host in enumerate(made):
            # A home of its own: what root's .bashrc does would be measured otherwise.
            passwd = f"root:x:0:0:root:{path}:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
            (host.etc / "passwd").write_text(passwd)
            folder = WaitFolder(path / host.name / "info.d")
            folder.create()
            argv, host_key = sshd.prepare(folder, 2025, "root")
            write_private(folder.authorized_keys, authorized_line(public) + "\n")
            self.servers.append(host.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            members.append(
                ClusterMember(
                    rank,
                    host.name,
                    host.address,
                    2025,
                    "root",
                    host_key,
                    "x",
                    sys.executable,
                    str(ROOT),
                    str(folder.path),
                )
            )
        members[0] = replace(members[0], public_key=public)
        self.folder = WaitFolder(path / made[0].name / "info.d")
        self.cluster = WaitingCluster(0, "x", "now", tuple(members))
        write_cluster(self.folder.cluster_file, self.cluster)
        self.env = {
            "PYTHONPATH": str(ROOT),
            "CLUSTER_INFO_FILE": str(self.folder.cluster_file),
            "HOME": str(path),
        }
        time.sleep(2)

    def config(self, kept: bool) -> Path:
        """Write the peers' SSH configuration."""
        known = self.path / "known_hosts"
        known.write_text(known_hosts(self.cluster))
        path = self.path / ("kept" if kept else "new")
        share = f"ControlMaster auto\nControlPersist 300\nControlPath {self.path}/c-%h\n" if kept else ""
        aliases = "".join(
            f"Host {member.host}\n  HostKeyAlias {member.alias}\n" for member in self.cluster.members
        )
        path.write_text(
            f"{aliases}Host *\nPort 2025\nUser root\nIdentityFile {self.key}\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {known}\nStrictHostKeyChecking yes\nKexAlgorithms curve25519-sha256\n"
            f"Ciphers aes128-gcm@openssh.com\nLogLevel ERROR\n{share}"
        )
        return path

    def pdsh(self, kept: bool) -> dict[str, str]:
        """Return how pdsh is told of the configuration."""
        return {"PDSH_SSH_ARGS_APPEND": f"-F {self.config(kept)}"}

    def run(self, argv: list[str], **env: str) -> str:
        """Run a command on the first host and return what it printed."""
        done = self.made[0].run(argv, env={**self.env, **env}, timeout_s=120)
        assert done.returncode == 0, f"{argv}: {done.stderr[-500:]}"
        return done.stdout

    def broker(self) -> subprocess.Popen[str]:
        """Start what rank 0's wait keeps: no connection is open yet."""
        argv = list(helper.command("dist-launch-broker", str(self.folder.path), str(self.key)))
        process = self.made[0].popen(argv, env=self.env)
        while not self.folder.socket.exists():
            time.sleep(0.02)
        time.sleep(0.3)
        return process


def compare(lab: Lab, number: int) -> int:
    """Measure all in turn; return 1 where a ratio or the output is not as it should be."""
    names = f"node[0-{number - 1}]"
    peers: dict[str, Callable[[bool], list[str]]] = {}
    if shutil.which("pdsh"):
        peers["pdsh"] = lambda _: ["pdsh", "-R", "ssh", "-S", "-f", str(number), "-w", names, "hostname"]
    if shutil.which("clush"):
        peers["clush"] = lambda kept: [
            *("clush", "-q", "-f", str(number), "-o", f"-F {lab.config(kept)}", "-w", names, "hostname")
        ]
    if not peers:
        print("skipped: needs pdsh or clush to compare with")
        return 0
    ours = [*DIST_LAUNCH, "ssh", "all", "hostname"]
    cold: dict[str, list[float]] = {name: [] for name in ("dist-launch", *peers)}
    kept: dict[str, list[float]] = {name: [] for name in cold}
    # Taken in turn, so that other work on this machine meets all of them.
    for _ in range(RUNS):
        broker = lab.broker()
        cold["dist-launch"].append(timed(partial(lab.run, ours), number))
        stop(broker)
        for name, command in peers.items():
            cold[name].append(timed(partial(lab.run, command(False), **lab.pdsh(False)), number))
    broker = lab.broker()
    for round_number in range(RUNS + 1):
        kept["dist-launch"].append(timed(partial(lab.run, ours), number))
        for name, command in peers.items():
            kept[name].append(timed(partial(lab.run, command(True), **lab.pdsh(True)), number))
        if round_number == 0:  # it opened the connections
            for times in kept.values():
                times.clear()
    stop(broker)
    failed = report("new connections", cold, 0.7) | report("kept connections", kept, 0.5)
    return int(failed | flood(lab, number))


def stop(broker: subprocess.Popen[str]) -> None:
    """End a broker."""
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=20)


def timed(run: Callable[[], str], number: int) -> float:
    """Return how long it took, once every host has answered."""
    began = time.monotonic()
    lines = run().splitlines()
    seconds = time.monotonic() - began
    assert len(lines) == number, f"{len(lines)} lines of {number} hosts"
    return seconds


def report(what: str, times: dict[str, list[float]], limit: float) -> bool:
    """Print medians and the ratio to the best peer; return whether it is too high."""
    best = {name: statistics.median(values) for name, values in times.items()}
    peer = min((name for name in best if name != "dist-launch"), key=lambda name: best[name])
    ratio = best["dist-launch"] / best[peer]
    listed = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items())
    print(f"{what}: {listed}; ratio to {peer}: {ratio:.2f} (at most {limit})")
    return ratio > limit


def flood(lab: Lab, number: int) -> bool:
    """Let every host print 10 MB; return whether a line was lost or mixed."""
    line = "x" * 80
    count = MEGABYTES * 1_000_000 // (len(line) + 10)
    script = f'seq -f "$(hostname) %.0f {line}" {count}'
    broker = lab.broker()
    began = time.monotonic()
    with tempfile.TemporaryFile(dir=lab.path) as out:
        argv = lab.made[0].command([*DIST_LAUNCH, "ssh", "all", script])
        subprocess.run(argv, env={**os.environ, **lab.env}, stdout=out, check=True, timeout=600)
        seconds = time.monotonic() - began
        size = out.tell()
        out.seek(0)
        seen = [0] * number
        wrong = 0
        for text in out:
            prefix, host, index, rest = text.decode().split(" ", 3)
            rank = int(prefix.removeprefix("[rank-").removesuffix("]"))
            seen[rank] += 1
            wrong += host != f"node{rank}" or int(index) != seen[rank] or rest != line + "\n"
    stop(broker)
    lost = sum(count - lines for lines in seen)
    print(
        f"output: {size / 1e6:.0f} MB of {number} hosts in {seconds:.1f} s: {lost} lines lost, {wrong} mixed"
    )
    return bool(lost or wrong)


if __name__ == "__main__":
    sys.exit(main())
