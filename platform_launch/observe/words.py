"""The English words of what is seen of ranks, by code; ``console/chinese.yaml`` has the Chinese ones."""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.sentences import Sentence, SentenceRenderer

WORDS: Mapping[str, str] = {
    # Who.
    "rank": "rank {numbers}",
    "ranks": "ranks {numbers}",
    "ranks-and": "ranks {numbers} and {last}",
    "ranks-more": "ranks {numbers} and {more} more",
    "rank-on": "rank {rank} (node {node}, {host}, pid {pid})",
    "rank-on-gpu": "rank {rank} (node {node}, {host}, pid {pid}, {gpu})",
    # Who keeps whom waiting.
    "culprit": "{who} {does}",
    "more-ranks": "and {count} more ranks",
    "nobody-apart": "no rank can be told from the others: see their stacks",
    "all-ended": "all ranks have ended, and what started them has not yet",
    "waits-in": "{who} waits in {operation}",
    "wait-in": "{who} wait in {operation}",
    "of-group": "{operation} of group {group}",
    "from-frame": "{what} ({frame})",
    "for-ranks": "{what} for {who}",
    # Who waits in a process group, by the dumps of the flight recorder.
    "are-in": "{who} in {what}",
    "of-all": "{operation} of the group of all",
    "called-at": "{what}, called at {frame}",
    "not-come": "{who} not there yet",
    "stuck-before": "{who} there, but stuck in an earlier one",
    "elsewhere": "{who} at another operation under the same number",
    "waiting-for": "{told}; {others}",
    # What a process is.
    "state-stopped": "stopped",
    "state-traced": "stopped by a debugger",
    "state-blocked": "blocked in the kernel",
    "state-blocked-in": "blocked in the kernel ({function})",
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
    "gone": "has ended, while others wait for it",
    "halted": "is stopped by a signal (kill -CONT {pid} lets it go on)",
    "holds-gil": "has a thread that holds the GIL and lets no other run",
    "computes": "computes",
    "loops": "computes and does not leave this place",
    "naps": "sleeps",
    "sleeps": "waits",
    "sleeps-in": "waits ({function})",
    "kernel-sleeps": "waits in the kernel ({function})",
    "runs": "runs",
    "other-thread": "{what}, and another thread at {frame}",
    "loader-stuck": "{what}, whose worker process {pid} {does}",
    "unheard": "{what}, and {remote} does not acknowledge what {local} sent it {times} times: packets "
    "between the two vanish (firewall, cable, switch, MTU)",
    "unheard-several": "{what}, and {remote} does not acknowledge what {local} sent it {times} times "
    "(and so {more} more): packets between the two vanish (firewall, cable, switch, MTU)",
    "mismatch": "is in {operation}, others in another operation of the same number",
    "still-in": "is still in {operation}",
    "others-done": "{what}, which others have done: its device or its network is stuck",
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
    "waits-jax": "waits in JAX for the other processes",
    "waits-store": "waits for the other ranks in a store",
    "downloads": "downloads",
    "imports": "imports modules",
    "waits-child": "waits for a process it started",
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
    "child": "child {pid} ({name}) {what}",
    "not-told": "not known: {problem}",
    "list-cut": "{items} … ({count} in all)",
}

_ENGLISH = SentenceRenderer(WORDS)


def english(sentence: Sentence) -> str:
    """Say what is seen in English."""
    return _ENGLISH.render(sentence)
