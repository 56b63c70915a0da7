"""The English of ProcGuard's sentences, by code: for the API, tables and logs.

Sentences (``platform_launch/sentences.py``) are kept and sent as a code and values. Other languages look up
these templates.
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.observe.words import WORDS
from platform_launch.sentences import Sentence, phrase
from platform_launch.text import Phrase

ENGLISH: Mapping[str, str] = {
    # Parts of others.
    "quoted": "{text}",
    "list-cut": "{items} … ({count} in all)",
    "of-worker": "{worker}: {what}",
    "unset": "not set",
    "unnamed-host": "an unnamed host",
    "unknown-address": "an unknown address",
    # Events of groups.
    "like": "like {group}",
    "changes": "{changes}",
    "change": "{setting}: {before} → {after}",
    "workers": "{workers}",
    "workers-taken-out": "{workers}",
    "nodes": "{nodes}",
    "run": "run {run}",
    "run-failed": "run {run}: {failure}",
    "run-fails": "run {run}: {failure}; restart {restart} of {most} follows",
    "when-stopped": "when it has stopped",
    "silent-workers": "silent: {workers}",
    "all-heard": "every worker is heard again",
    "queued": "{count} workers wanted",
    "hold-ends": "its workers leave it at {at}",
    "idle-gpus": "less than {percent} % of its GPUs used for {minutes} min",
    # Events of nodes and people.
    "joined": "workers on {host}: {workers}; {limit}",
    "taken-over": "{joined}; the agent on {host} was silent",
    "rejoined": "{joined}; changed: {field}",
    "any-command": "any command",
    "limited-to": "commands allowed: {count}",
    "name-taken": "an agent on {host} asked for the name; {owner} has it",
    "wrong-token": "wrong join token, from {address}",
    "from-address": "from {address}",
    "role": "{role}",
    "token": "{label}: {role} until {day}",
    # Why a node came into quarantine.
    "device-findings": "{findings}",
    "device-finding": "{where}: {what} [{finding}]",
    "device-finding-numbered": "{where}: {what} [{finding}]",
    # Why a worker, and with it a group, failed.
    "silent": "no heartbeat for {seconds} s",
    "newer-run": "reports generation {reported}, newer than this run's ({run}): is the server's database an "
    "old copy? Start the group again",
    "unknown-run": "lost: its agent knows nothing of this run",
    "lost": "lost: nobody can tell how it ended",
    "forgetful": "its agent has lost its memory",
    "refuses": "its agent refuses to start it",
    "too-early": "started generation {run} before it was told to: is the database an old copy?",
    "not-started": "was told to start {seconds} s ago and has not",
    "stopped": "was stopped on its node",
    "ended": "ended, nobody knows how",
    "exit": "ended with exit code {exit_code}",
    "exit-reason": "ended with exit code {exit_code}: {reason}",
    "cannot-start": "cannot start: {reason}",
    "cannot-start-again": "cannot start again: {reason}",
    "not-ready": "not ready within {seconds} s: {workers}",
    "not-ready-worker": "{worker} ({why})",
    "still-busy": "generation {generation} still {state}",
    "no-answer": "its agent has not answered",
    "while-silent": "{what} (silent at that time: {workers})",
    # Why an agent cannot start a run.
    "foreign-variables": "the server wants to set {names}, which is no part of a worker's place: this agent "
    "sets only ranks and the master's address; update it if the server is newer",
    "no-command": "no command: set the group's, or start this agent with --command",
    "zero-byte-in-command": "the command holds a zero byte, which no program can be given: correct the "
    "group's command",
    "zero-byte-in-directory": "the directory holds a zero byte: correct the group's settings",
    "command-not-allowed": "the group's command is not allowed on this node: its agent is limited to "
    "{allowed}; start it with a further --allow, or change the group's command",
    "impossible-variables": "no environment can hold {names}: correct the group's settings",
    "variables-not-allowed": "the group sets {names}, and this node's agent is limited to commands, which "
    "variables could change: leave them out, or put them into a script it allows",
    "directory-not-allowed": "the group starts in {directory}, and this node's agent is limited to commands "
    "of its own directory: leave the directory empty",
    "directory-missing": "the directory {directory} is not here: create it, or start the agent with another "
    "--directory",
    "directory-closed": "the directory {directory} may not be entered: correct its permissions",
    "program-missing": "there is no program {file}: correct the command, or bring the file to this node",
    "program-not-executable": "{file} may not be executed: chmod +x it, or name its interpreter in the "
    "command",
    "program-not-in-path": "{program} is not in this agent's PATH ({path}): name its whole path, or start "
    "the agent in the training's environment",
    "port-taken": "port {port} is taken by {holders}: end it, or set another Master port",
    "unseen-process": "a process that cannot be seen from here",
    "port-unusable": "nothing can listen on port {port}: {problem}; set another Master port",
    "master-unresolved": "the Master address {master} cannot be resolved on this node: {problem}; enter it "
    "in /etc/hosts or the name server, or set an address that every node knows",
    "state-trouble": "{problem}: see to this agent's --state folder",
    # How an agent saw a run end.
    "stopped-by-order": "stopped by the server's order",
    "stopped-by-agent": "the agent of this node was told to end",
    "agent-gone": "the agent of this node is gone",
    "stopped-with-kills": "{reason}; processes that had to be killed: {count}",
    "killed": "killed by {signal}",
    "leftovers": "its supervisor is gone: its processes are being ended",
    "lost-rebooted": "lost: this machine was started anew after it had become ready",
    "lost-not-ready": "lost: this agent does not remember having been ready for it",
    "lost-supervisor": "lost: its supervisor is gone, nobody saw how it ended",
    "lost-never-started": "lost: it was to start, and never did",
    "lost-start-failed": "lost: {problem}",
}

TEMPLATES: Mapping[str, str] = {**WORDS, **ENGLISH}


def message(sentence: Sentence) -> Phrase:
    """Return a sentence as a message. Raises KeyError for one of another version."""
    return phrase(sentence, TEMPLATES)


def english(sentence: Sentence) -> str:
    """Return a sentence in English. Raises KeyError for one of another version."""
    return str(message(sentence))
