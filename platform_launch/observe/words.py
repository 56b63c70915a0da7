"""English templates of what ranks do, by code."""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.sentences import Sentence, phrase
from platform_launch.text import Phrase

WORDS: Mapping[str, str] = {
    # Who.
    "rank": "rank {numbers}",
    "ranks": "ranks {numbers}",
    "ranks-and": "ranks {numbers} and {last}",
    "ranks-more": "ranks {numbers} and {more} more",
    "rank-on": "rank {rank} (node {node}, {host}, pid {pid})",
    "rank-on-gpu": "rank {rank} (node {node}, {host}, pid {pid}, {gpu})",
    # Which ranks wait for which.
    "culprit": "{who} {does}",
    "more-ranks": "and {count} more ranks",
    "nobody-apart": "no rank stands out: see their stacks",
    "all-ended": "all ranks have ended, and what started them has not yet",
    "waits-in": "{who} waits in {operation}",
    "wait-in": "{who} wait in {operation}",
    "of-group": "{operation} of group {group}",
    "from-frame": "{what} ({frame})",
    "for-ranks": "{what} for {who}",
    # Who waits in a process group, according to the flight recorder.
    "are-in": "{who} in {what}",
    "of-all": "{operation} of the group of all",
    "called-at": "{what}, called at {frame}",
    "not-come": "{who} not there yet",
    "stuck-before": "{who} there, but stuck in an earlier one",
    "elsewhere": "{who} in {operations} under the same number",
    "waiting-for": "{waiting}; {others}",
    # Who is slow.
    "of-node": "{who} (node {node}, {host})",
    "whole-node": "node {node} ({host}), all its ranks,",
    "makes-longer": "{who} makes each step {percent} longer ({step} s instead of {usual} s)",
    "mostly-at": "{what}, mostly at {frame} ({count} of {samples} samples; other ranks {others})",
    "slow-data": "{what}: it waits for data",
    "slow-computing": "{what}: it computes",
    "slow-throttled": "{what}: its control group may not run for {percent} of the time (CPU quota)",
    "slow-queued": "{what}: other processes have its processor for {percent} of the time",
    "slow-queued-by": "{what}: other processes have its processor for {percent} of the time, mostly {cause}",
    "slow-stolen": "{what}: the hypervisor takes {percent} of its node's processor time (steal)",
    "slow-swapped": "{what}: its memory is read from disk {cause} times a second (swap)",
    "slow-resent": "{what}: {percent} of what its node sends is lost on the network and sent again",
    "slow-device": "{what}: {cause}",
    "slow-now": "slow: {what}",
    "pace-unknown": "slow ranks: not known, {why}",
    "no-device-times": "since NCCL's recorder has no times of the device (TORCH_NCCL_ENABLE_TIMING=1 records "
    "them)",
    "longer-steps": "each step takes {step} s, {usual} s at first",
    "usual-steps": "each step takes {step} s again",
    # What a process is.
    "state-stopped": "suspended",
    "state-traced": "stopped by a debugger",
    "state-blocked": "blocked in the kernel",
    "state-ended": "ended",
    # What a rank does.
    "is": "is {state}",
    "at": "{what} at {frame}",
    "on": "{what} on {file}",
    "and": "{what}, {more}",
    "while": "{what} while it {doing}",
    "not-known": "is nowhere to be found",
    "not-known-on-one": "is not known to any node that answers; node {nodes} did not",
    "not-known-on-several": "is not known to any node that answers; nodes {nodes} did not",
    "gone": "has ended, but others wait for it",
    "halted": "is stopped by a signal (kill -CONT {pid} resumes it)",
    "holds-gil": "has a thread that holds the GIL, so that no other thread can run",
    "computes": "computes",
    "loops": "computes and has not left this function: a long computation, or an endless loop",
    "naps": "sleeps",
    "sleeps": "waits",
    "runs": "runs",
    "other-thread": "{what}; another of its threads is at {frame}",
    # What a process waits for.
    "waits-lock": "waits for the lock on {file}",
    "waits-lock-of": "waits for the lock on {file} (held by process {pid})",
    "waits-some-lock": "waits for a file lock",
    "waits-read": "waits to read {file}",
    "waits-write": "waits to write {file}",
    "waits-peer-read": "waits for an answer from {file}",
    "waits-peer-write": "waits to send to {file}",
    "waits-connect": "waits to connect to {file}",
    "waits-accept": "waits for a connection",
    "waits-some-read": "waits to read",
    "waits-some-write": "waits to write",
    "waits-open": "waits for a file to open",
    "waits-poll": "waits until a file or a connection is ready",
    "waits-lock-or-thread": "waits for a lock or for another thread",
    "pipe-full": "waits to write to a pipe that is full: nobody reads it",
    "pipe-empty": "waits for data from a pipe",
    "to-peer": "{what} (peer {peer})",
    # Its children, and evidence of work.
    "worker": "worker process {pid} ({name})",
    "child": "subprocess {pid} ({name})",
    "child-stuck": "{what}; its {child} {does}",
    "child-works": "{what}; its {child} computes ({percent} of a core)",
    "thread-works": "{what}; other threads of it compute ({percent} of a core)",
    "device-works": "{what}, which computes (busy for {percent} of the time)",
    "bytes-move": "{what}; it moves {rate} MB/s",
    "no-sign": "{what}, but has used no CPU and moved no bytes for {seconds} s",
    "unheard": "{what}, and {remote} does not acknowledge what {local} sent it {times} times: packets "
    "between the two vanish (firewall, cable, switch, MTU)",
    "unheard-several": "{what}, and {remote} does not acknowledge what {local} sent it {times} times "
    "(and so {more} more): packets between the two vanish (firewall, cable, switch, MTU)",
    "mismatch": "{what}, but others are in {others}: the ranks do not call the same operations",
    "with-shapes": "{operation} of shape {shapes}",
    "is-in": "is in {operation}",
    "circular": "{what}, in a circular wait: the ranks use these groups in different orders",
    "others-done": "{what}, which others have done: its device or its network is stuck",
    "others-left": "{what}, which others have done: check that all ranks call operations in the same order, "
    "and the network between them",
    "others-left-root": "{what}, which others have left: check that all ranks pass the same src, a global "
    "rank, and call operations in the same order",
    # What it is busy with.
    "compiles-model": "compiles its model",
    "compiles-kernels": "compiles kernels",
    "compiles-extension": "compiles an extension",
    "torch-save": "is in torch.save",
    "torch-load": "is in torch.load",
    "checkpoint": "saves or loads a checkpoint",
    "waits-gpu": "waits for its GPU",
    "waits-loader": "waits for its DataLoader",
    "waits-torch": "waits in torch.distributed",
    "waits-torch-in": "waits in {function}",
    "waits-build-lock": "waits for the lock file of another build of this extension",
    "waits-file-lock": "waits for a file lock",
    "waits-jax": "waits in JAX for the other processes",
    "waits-store": "waits for the other ranks in a store",
    "http-request": "makes a network request",
    "imports": "imports modules",
    "waits-child": "waits for a process it started",
    "is-debugged": "is in a debugger (platform-launch debug)",
    # Where ranks are, and their stacks.
    "place": "{who}: {what}",
    "in": "{what}, in {operation}",
    "more-places": "and {count} more places (--stacks shows all)",
    "node-silent": "node {node} ({name}) does not answer",
    "no-stack": "no stack",
    "more-stacks": "and {count} more different stacks",
    "with-state": "{what} {state}",
    "main-thread": "main thread",
    "thread": "thread {name}",
    "thread-unnamed": "thread",
    "kernel": "kernel",
    "child-at": "child {pid} ({name}) {what}",
    "not-told": "not known: {problem}",
    "list-cut": "{items} … ({count} in all)",
}


def message(sentence: Sentence) -> Phrase:
    """Return a code and its values as a message. Raises KeyError for a code or a value of another version."""
    return phrase(sentence, WORDS)


def english(sentence: Sentence) -> str:
    """Return the same in English."""
    return str(message(sentence))
