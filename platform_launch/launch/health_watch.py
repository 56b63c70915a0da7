"""Monitors the devices of one node during a run, and checks them once more after a failure.

Reports when a problem begins and when it ends. Every node sends the others a sample of its last minutes over
the rendezvous, and node 0 compares them. A driver that hangs blocks only one thread of the launcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Condition, Thread

from platform_launch.errors import HardwareError
from platform_launch.events import Event, event
from platform_launch.hardware import rdma
from platform_launch.hardware.gpu_health import GpuHealthProbe, Xid
from platform_launch.health.comparison import NodeSample, compare, sample
from platform_launch.health.conditions import CALM_S, Conditions
from platform_launch.health.conditions import Condition as DeviceCondition
from platform_launch.health.faults import faults
from platform_launch.health.finding import DeviceFinding, Grade, NodeHealth, node_health
from platform_launch.health.reading import DeviceHistory, DeviceReading
from platform_launch.health.trends import trends
from platform_launch.launch.training_command import HealthOptions
from platform_launch.rendezvous.messages import InvalidMessageError, Message, decode, encode
from platform_launch.rendezvous.run.texts import ReadShared, SharedText, SharedTexts, TextCommand, TextNews
from platform_launch.text import Phrase

SHARE_EVERY_S = 60.0
# How long to wait for XIDs at a time, and so how late a stop is noticed.
_SLICE_S = 0.5
# The job has failed, and the other nodes wait for this one's result.
_CHECK_LIMIT_S = 3.0
_PEERS_LIMIT_S = 3.0

_LEVELS = {Grade.BAD: "ERROR", Grade.SUSPECT: "WARN", Grade.HEALTHY: "INFO"}


@dataclass(frozen=True)
class HealthSample(Message):
    """A node's device sample for the others."""

    sample: NodeSample


class HealthWatch:
    """For one attempt. ``report(event)`` reports; ``send`` sends to the rendezvous, if there is one."""

    def __init__(
        self,
        options: HealthOptions,
        report: Callable[[Event], None],
        send: Callable[[TextCommand], None] | None = None,
    ) -> None:
        self.options = options
        self._report = report
        self._send = send
        self._changed = Condition()
        self._ended = self._reading_requested = False
        self._readings = 0
        self._history = DeviceHistory()
        self._conditions = Conditions()
        self._between_nodes = Conditions()
        self._shared: tuple[DeviceFinding, ...] | None = None
        self._shared_at = float("-inf")
        self._problem = ""
        self._peers: tuple[NodeSample, ...] = ()
        self._peers_read = 0
        self._thread = Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Start monitoring."""
        if self.options.interval_s and self.options.has_devices:
            self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for a driver that does not respond."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def check(self) -> NodeHealth | None:
        """Check the devices once more; return this node's health from all findings, None without devices."""
        if not self.options.has_devices:
            return None
        with self._changed:
            self._reading_requested, before, self._problem = True, self._readings, ""
            if not self._thread.is_alive():
                Thread(target=self._once, name="health-once", daemon=True).start()
            self._changed.wait_for(lambda: self._readings > before or self._problem, _CHECK_LIMIT_S)
            found = [*self._conditions.now, *self._found()]
            if self._readings == before:
                found.append(_silent(self._problem))
        return node_health(found)

    def receive(self, message: TextNews) -> bool:
        """Store the samples of the other nodes; return whether the message had any."""
        if not isinstance(message, SharedTexts):
            return False
        found = []
        for rank, text in message.texts.items():
            with suppress(InvalidMessageError):
                found.append(replace(decode(text.encode(), HealthSample).sample, node_rank=rank))
        with self._changed:
            self._peers, self._peers_read = tuple(found), self._peers_read + 1
            self._changed.notify_all()
        return True

    def samples(self, *, of_all_nodes: bool) -> list[NodeSample]:
        """Return the samples of this node and, if requested, of the others."""
        found = {}
        if of_all_nodes and self._send is not None:
            with self._changed:
                before = self._peers_read
                self._send(ReadShared())
                self._changed.wait_for(lambda: self._peers_read > before, _PEERS_LIMIT_S)
                found = {peer.node_rank: peer for peer in self._peers}
        if self.options.has_devices:
            options = self.options
            found[options.node_rank] = sample(
                self._history, options.node_rank, options.host, self._conditions.now
            )
        return list(found.values())

    def slowed_devices(self) -> dict[str, str]:
        """Return what currently reduces the clocks of GPUs, by GPU."""
        found = [one for one in self._conditions.now if one.id == "gpu-slowdown"]
        return {str(one.where): f"{one.where}: {one.what}" for one in found}

    def _run(self) -> None:
        options, probe = self.options, GpuHealthProbe(self.options.gpus)
        try:
            probe.open()
            if probe.xids_problem:
                self._report(event("xids-not-heard", problem=probe.xids_problem))
            due = 0.0
            while not self._ended:
                xids = probe.wait(_SLICE_S) if self._readings else ()
                if not (xids or self._reading_requested or time.monotonic() >= due):
                    continue
                due = time.monotonic() + options.interval_s
                self._record(self._read(probe), xids)
        except Exception as error:  # whatever it is, the job continues
            self._report(event("devices-not-watched", problem=_describe(error)))
        finally:
            probe.close()

    def _once(self) -> None:
        """Read once, if nothing is being monitored."""
        probe = GpuHealthProbe(self.options.gpus)
        try:
            probe.open()
            self._record(self._read(probe), ())
        except Exception as error:  # whatever it is, the caller reports it
            with self._changed:
                self._problem = _describe(error)
                self._changed.notify_all()
        finally:
            probe.close()

    def _found(self) -> list[DeviceFinding]:
        """Return the findings from all readings so far."""
        last = self._history.last
        if last is None:
            return []
        return [*faults(last, self._history.first, self._history.xids), *trends(self._history)]

    def _read(self, probe: GpuHealthProbe) -> DeviceReading:
        ports = rdma.read_health(self.options.ports, self.options.sys_root)
        return DeviceReading(time.monotonic(), probe.read(), ports)

    def _record(self, reading: DeviceReading, xids: Iterable[Xid]) -> None:
        """Judge a reading, and report which problems began and which ended."""
        with self._changed:
            self._history.add(reading, xids)
            begun, ended = self._conditions.update(self._found(), reading.at_s)
            self._readings += 1
            self._reading_requested = False
            self._changed.notify_all()
        self._report_changes(begun, ended)
        self._share(reading.at_s)
        self._compare(reading.at_s)

    def _share(self, at_s: float) -> None:
        """Send the sample to the others: first, after each change, and once a minute."""
        known = self._conditions.now
        if self._send is None or (known == self._shared and at_s - self._shared_at < SHARE_EVERY_S):
            return
        own = sample(self._history, self.options.node_rank, self.options.host, known)
        self._send(SharedText(encode(HealthSample(own)).decode()))
        if self.options.node_rank == 0 and at_s - self._shared_at >= SHARE_EVERY_S:
            self._send(ReadShared())
        self._shared, self._shared_at = known, at_s

    def _compare(self, at_s: float) -> None:
        """On node 0: report which node differs from the others."""
        if self.options.node_rank != 0 or not self._peers:
            return
        with self._changed:
            peers = self._peers
        hosts = {peer.node_rank: peer.host for peer in peers}
        found = [
            replace(
                finding,
                where=Phrase(
                    "node {rank} ({host}), {where}", rank=rank, host=hosts[rank], where=finding.where
                ),
            )
            for rank, finding in compare(peers)
        ]
        self._report_changes(*self._between_nodes.update(found, at_s))

    def _report_changes(self, begun: Iterable[DeviceFinding], ended: Iterable[DeviceCondition]) -> None:
        for finding in begun:
            self._report(_begin_event(finding))
        for condition in ended:
            self._report(_end_event(condition.finding, condition.seen_s - condition.began_s))


def _describe(error: Exception) -> str:
    return error.message if isinstance(error, HardwareError) else f"{type(error).__name__}: {error}"


def _silent(problem: str) -> DeviceFinding:
    return DeviceFinding(
        "device-driver-silent",
        Grade.SUSPECT,
        Phrase("the GPU driver"),
        problem or Phrase("does not answer for {limit:g} s", limit=_CHECK_LIMIT_S),
        "look in dmesg, and reboot the node if nvidia-smi hangs too",
    )


def _begin_event(finding: DeviceFinding) -> Event:
    fields = {
        "what": Phrase("{where}: {what}", where=finding.where, what=finding.what),
        "hint": finding.hint,
        "grade": finding.grade.value,
    }
    return Event(finding.id, _LEVELS[finding.grade], finding.where, fields)


def _end_event(finding: DeviceFinding, after_s: float) -> Event:
    return event(
        "device-well-again",
        where=finding.where,
        what=finding.what,
        finding=finding.id,
        after_s=after_s + CALM_S,
    )
