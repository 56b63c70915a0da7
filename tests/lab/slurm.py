"""A real Slurm of several nodes on this machine: one controller, one slurmd a host, GPUs by device nodes.

    with slurm(2, folder) as cluster:
        job = cluster.submit(script)
        cluster.wait(job, "COMPLETED")

Hosts are network namespaces (``netns.py``), so that ``node0`` and ``node1`` have addresses and names of their
own. Needs root and Debian's slurm-wlm and munge; no daemon of the system is used or touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.lab.needs import Need
from tests.lab.netns import Host, hosts, why_no_hosts
from tests.lab.waiting import LIMIT_S, until

GPUS_PER_NODE = 2
_NVIDIA_MAJOR = 195
_DAEMONS = ("munged", "slurmctld", "slurmd")
_COMMANDS = ("sbatch", "srun", "scancel", "scontrol", "squeue")

# Without cgroups, accounting and users: what remains of Slurm is its scheduling, steps and signals. pgid
# signals the tasks and not what they start, as proctrack/cgroup does by default (SignalChildrenProcesses in
# cgroup.conf); unlike it, it kills no more than that either: what a job leaves behind, its launcher left.
_CONFIG = """\
ClusterName=lab
SlurmctldHost=node0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credentials of its first run have expired; two minutes by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
# As short as they can be: the tests wait for a time limit and for a lost node.
SlurmdTimeout=5
KillWait=5
MinJobAge=300
CompleteWait=0
RebootProgram=/bin/false
GresTypes=gpu
NodeName={names} CPUs=16 RealMemory=8000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={names} Default=YES MaxTime=1:00:00 OverSubscribe=NO State=UP
"""


@dataclass(frozen=True)
class Job:
    """A submitted job. ``output`` is where its batch script and steps write."""

    id: int
    output: Path

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Cluster:
    """A running Slurm. Jobs are submitted from node0, in ``folder``, with ``env`` beside our variables."""

    def __init__(self, nodes: tuple[Host, ...], folder: Path, env: Mapping[str, str]) -> None:
        self.nodes = nodes
        self.folder = folder
        self._env = {**env, "SLURM_CONF": str(folder / "slurm.conf"), "HOME": str(folder)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def run(
        self, argv: Sequence[str | Path], *, timeout_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on node0 to its end, and no longer than ``timeout_s``."""
        return self.nodes[0].run(
            ["timeout", str(timeout_s), *argv], env=self._env, timeout_s=timeout_s + 5, cwd=self.folder
        )

    def submit(self, script: str, *options: str) -> Job:
        """Submit a batch script."""
        output = self.folder / f"job-{len(list(self.folder.glob('job-*.sh')))}.out"
        body = output.with_suffix(".sh")
        body.write_text(script)
        done = self.run(["sbatch", "--parsable", f"--output={output}", *options, body])
        assert done.returncode == 0, done.stderr
        return Job(int(done.stdout.split(";")[0]), output)

    def show(self, job: Job) -> dict[str, str]:
        """Return what ``scontrol show job`` says, name by name."""
        done = self.run(["scontrol", "--oneliner", "show", "job", str(job.id)])
        assert done.returncode == 0, done.stderr
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def wait(self, job: Job, *states: str) -> dict[str, str]:
        """Wait until the job is in one of these states and return what Slurm says of it."""
        seen: dict[str, str] = {}

        def arrived() -> bool:
            nonlocal seen
            seen = self.show(job)
            return seen["JobState"] in states

        until(arrived, lambda: f"job is {seen.get('JobState')}, not {states}\n{job.text}", pause_s=0.1)
        return seen

    def wait_for_text(self, job: Job, text: str) -> None:
        """Wait until a text stands in the job's output."""
        until(lambda: text in job.text, lambda: f"{text!r} does not come\n{job.text}", pause_s=0.1)

    def lose(self, node: Host) -> None:
        """Take a node away as a power cut does: its slurmd and every process of its jobs, at once."""
        controller = {self._daemons[name].pid for name in ("munged", "slurmctld")}
        lost = _processes_on(node) - controller
        # All stop before any is killed: one that goes on for a moment would tell of another's end.
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for pid in lost:
                with suppress(ProcessLookupError):
                    os.kill(pid, sent)
        self._daemons[f"slurmd-{node.name}"].wait(LIMIT_S)

    def left_on(self, node: Host, marker: str) -> list[str]:
        """Return the command lines of the node's processes in which a text stands."""
        lines = []
        for pid in _processes_on(node):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                lines += [line] if marker in line else []
        return lines

    def bring_back(self, node: Host) -> None:
        """Start the node's slurmd again; Slurm takes it back into service once it has no job left."""
        self._start_slurmd(node)

    def start(self) -> None:
        """Write the configuration and start munged, slurmctld and a slurmd on every host."""
        self._configure()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        socket = self.folder / "munge.socket"
        munge = ["munged", "--force", "-F", f"--key-file={key}", f"--socket={socket}"]
        munge += [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed")]
        controller = self.nodes[0]
        self._start("munged", munge, controller)
        until(socket.exists, lambda: self._log("munged"))
        self._start("slurmctld", ["slurmctld", "-D"], controller)
        for node in self.nodes:
            self._start_slurmd(node)
        self.await_idle()

    def stop(self) -> None:
        """End the daemons; what their jobs left on the hosts ends with the hosts."""
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait(LIMIT_S)

    def _configure(self) -> None:
        (self.folder / "state").mkdir()
        names = ",".join(node.name for node in self.nodes)
        config = _CONFIG.format(folder=self.folder, names=names, gpus=GPUS_PER_NODE)
        (self.folder / "slurm.conf").write_text(config)
        # Each node is in a rack of its own.
        racks = [f"SwitchName=rack{n} Nodes={node.name}" for n, node in enumerate(self.nodes)]
        core = "SwitchName=core Switches=" + ",".join(f"rack{n}" for n in range(len(self.nodes)))
        (self.folder / "topology.conf").write_text("\n".join([*racks, core, ""]))
        # A host's fresh /sys has no cgroups: slurmd, which uses none, must not look for their version there.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        devices = [self.folder / f"nvidia{index}" for index in range(GPUS_PER_NODE)]
        for index, device in enumerate(devices):
            # Slurm reads a GPU's number from its device node; nothing ever opens it.
            os.mknod(device, 0o20666, os.makedev(_NVIDIA_MAJOR, index))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/nvidia[0-{GPUS_PER_NODE - 1}]\n")

    def _start_slurmd(self, node: Host) -> None:
        self._start(f"slurmd-{node.name}", ["slurmd", "-D", "-N", node.name], node)

    def _start(self, name: str, argv: Sequence[str], node: Host) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                node.command(argv),
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_idle(self) -> None:
        """Wait until every node is up and has no job."""
        seen = ""

        def idle() -> bool:
            nonlocal seen
            seen = self.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout
            return seen.split() == ["idle"] * len(self.nodes)

        until(idle, lambda: seen + "".join(map(self._log, self._daemons)), pause_s=0.1)

    def _log(self, name: str) -> str:
        return f"{name}:\n{(self.folder / f'{name}.log').read_text(errors='replace')[-2000:]}\n"


def _processes_on(node: Host) -> set[int]:
    done = subprocess.run(
        ["ip", "netns", "pids", node.namespace], capture_output=True, text=True, timeout=LIMIT_S
    )
    return {int(pid) for pid in done.stdout.split()}


@contextmanager
def slurm(nodes: int, folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Give a Slurm of hosts node0, node1, …, all idle, and take everything away again."""
    assert not why_no_slurm(), f"{why_no_slurm()}: this test lacks the mark requires_slurm"
    with hosts(nodes) as made:
        cluster = Cluster(made, folder, env or {})
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@cache
def why_no_slurm() -> str:
    """Return why this machine cannot run a Slurm of its own, empty when it can."""
    if reason := why_no_hosts():
        return reason
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in (*_DAEMONS, *_COMMANDS) if shutil.which(tool, path=path) is None]
    if missing:
        return f"needs {', '.join(missing)} (slurm-wlm, munge)"
    return ""


requires_slurm = Need("Slurm", why_no_slurm).mark
