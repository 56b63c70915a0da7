"""torch's profiler on all ranks of a job at the same time, for ``platform-launch profile``."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from platform_launch.launch.peers import (
    LinkPeers,
    ObserveMessage,
    ProfileAnswer,
    ProfileQuestion,
    TraceAnswer,
    TracePosition,
    TraceQuestion,
)
from platform_launch.launch.training_command import HangOptions
from platform_launch.observe.arrivals import ClockOffset
from platform_launch.observe.look import (
    CONNECT_LIMIT_S,
    WRITE_LIMIT_S,
    RankTraceFile,
    profile_here,
    read_trace,
    trace_file,
)
from platform_launch.observe.node_probe import NodeProbe

# Bytes that fit into a message of the rendezvous, packed twice.
_PART_BYTES = 600 * 1024
_PART_LIMIT_S = 30.0
# Traces of other nodes pass through node 0: more than this would delay the job's own messages.
MOST_BYTES = 512 * 1024 * 1024


class Profiling:
    """For one start. Without ``peers`` this node is alone."""

    def __init__(self, probe: NodeProbe, options: HangOptions, peers: LinkPeers | None) -> None:
        self._probe, self._options, self._peers = probe, options, peers

    def run(self, seconds: float, ranks: tuple[int, ...]) -> list[dict[str, object]]:
        """Profile ranks (none: all) of all nodes; return the result of each.

        ``path`` is its gzipped trace, which the caller removes, ``problem`` why there is none, ``offset_s``
        how far its clock is ahead of node 0's.
        """
        options, peers = self._options, self._peers
        if peers is None:
            here = profile_here(self._probe.ranks(), seconds, ranks)
            return [self._described(one, options.node_rank, options.host, None) for one in here]
        limit_s = seconds + CONNECT_LIMIT_S + WRITE_LIMIT_S
        with ThreadPoolExecutor(1) as pool:
            own = pool.submit(profile_here, self._probe.ranks(), seconds, ranks)
            given, silent = peers.exchange(ProfileQuestion(seconds, ranks), ProfileAnswer, limit_s)
            given[options.node_rank] = ProfileAnswer(own.result(), options.host, peers.clock)
        self._fetch(peers, {node: one.traces for node, one in given.items() if node != options.node_rank})
        found = [
            self._described(one, node, answer.host, answer.clock)
            for node, answer in sorted(given.items())
            for one in answer.traces
        ]
        for node, host in sorted(silent.items()):
            found.append({"node_rank": node, "host": host, "problem": "it does not answer"})
        return found

    def receive(self, message: ObserveMessage) -> ObserveMessage | None:
        """Answer another node."""
        if isinstance(message, ProfileQuestion):
            traces = profile_here(self._probe.ranks(), message.seconds, message.ranks)
            clock = self._peers.clock if self._peers is not None else None
            return ProfileAnswer(traces, self._options.host, clock)
        if isinstance(message, TraceQuestion):
            at = message.parts.get(self._options.node_rank)
            data = read_trace(self._options.folder, at.pid, at.offset, _PART_BYTES) if at is not None else b""
            return TraceAnswer(base64.b64encode(data).decode())
        return None

    def _fetch(self, peers: LinkPeers, traces: Mapping[int, Sequence[RankTraceFile]]) -> None:
        """Fetch the traces of other nodes, a part of each node's at a time."""
        expected = {node: [one for one in some if one.bytes] for node, some in traces.items()}
        offsets = dict.fromkeys(expected, 0)
        left_bytes = MOST_BYTES
        while left_bytes > 0 and (
            wanted := {
                node: TracePosition(some[0].pid, offsets[node]) for node, some in expected.items() if some
            }
        ):
            answers, _ = peers.exchange(TraceQuestion(wanted), TraceAnswer, _PART_LIMIT_S)
            for node, at in wanted.items():
                answer = answers.get(node)
                data = _decoded(answer.data) if answer is not None else b""
                with self._path(node, at.pid).open("ab" if at.offset else "wb") as file:
                    file.write(data)
                offsets[node], left_bytes = at.offset + len(data), left_bytes - len(data)
                if offsets[node] >= expected[node][0].bytes:
                    del expected[node][0]
                    offsets[node] = 0
                elif not data:
                    self._path(node, at.pid).unlink(missing_ok=True)
                    expected[node].clear()
        for node, some in expected.items():
            for one in some:
                self._path(node, one.pid).unlink(missing_ok=True)

    def _path(self, node: int, pid: int) -> Path:
        if node == self._options.node_rank:
            return trace_file(self._options.folder, pid)
        return self._options.folder / f"{node}-{pid}.trace.gz"

    def _described(
        self, one: RankTraceFile, node: int, host: str, clock: ClockOffset | None
    ) -> dict[str, object]:
        path, problem = self._path(node, one.pid), one.problem
        if not problem and not path.is_file():
            problem = f"its trace of {one.bytes >> 20} MiB did not arrive"
        return {
            "rank": one.rank,
            "pid": one.pid,
            "node_rank": node,
            "host": host,
            "offset_s": clock.offset_s if clock is not None else 0.0,
            "error_s": clock.error_s if clock is not None else None,
            "path": "" if problem else str(path),
            "problem": problem,
        }


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return b""
