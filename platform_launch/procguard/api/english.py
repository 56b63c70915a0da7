"""The English templates of ProcGuard's sentences, by code.

Sentences (``platform_launch/sentences.py``) are stored and sent as a code and values. Other languages look up
these templates.
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_launch.observe.words import WORDS
from platform_launch.sentences import Sentence, phrase
from platform_launch.text import Phrase

ENGLISH: Mapping[str, str] = {
    # Parts of other sentences.
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
    "all-heard": "all workers send heartbeats again",
    "queued": "waits for {count} workers",
    "hold-ends": "its workers are released at {at}",
    "idle-gpus": "GPU use below {percent} % for {minutes} min",
    # Events of nodes and users.
    "joined": "workers on {host}: {workers}; {limit}",
    "taken-over": "{joined}; the agent on {host} was silent",
    "rejoined": "{joined}; changed: {field}",
    "any-command": "any command",
    "limited-to": "allowed commands: {count}",
    "name-taken": "an agent on {host} asked for the name, which the agent on {owner} has",
    "wrong-token": "wrong join token, from {address}",
    "from-address": "from {address}",
    "role": "{role}",
    "token": "{label}: {role} until {day}",
    # Reasons for a quarantine.
    "device-findings": "{findings}",
    "device-finding": "{where}: {what} [{finding}]",
    "device-finding-numbered": "{where}: {what} [{finding}]",
    # Reasons for the failure of a worker, and with it a group.
    "silent": "no heartbeat for {seconds} s",
    "newer-run": "reports generation {reported}, newer than this run's {run}; the server's database may "
    "be an old copy: start the group again",
    "unknown-run": "lost: its agent does not know this run",
    "lost": "lost: it is unknown how it ended",
    "forgetful": "its agent has lost its records",
    "refuses": "its agent refuses to start it",
    "too-early": "started generation {run} without an order; the server's database may be an old copy",
    "not-started": "has not started {seconds} s after the order",
    "stopped": "was stopped on its node",
    "ended": "ended; it is unknown how",
    "exit": "ended with exit code {exit_code}",
    "exit-reason": "ended with exit code {exit_code}: {reason}",
    "cannot-start": "cannot start: {reason}",
    "cannot-start-again": "cannot restart: {reason}",
    "not-ready": "not ready within {seconds} s: {workers}",
    "not-ready-worker": "{worker} ({why})",
    "still-busy": "generation {generation} is still {state}",
    "no-answer": "its agent has not answered",
    "while-silent": "{what} (silent at that time: {workers})",
    # Reasons why an agent cannot start a run.
    "foreign-variables": "the server sends {names} as rank variables, which this agent does not accept: "
    "update the agent if the server is newer",
    "no-command": "no command: set the group's, or start this agent with --command",
    "zero-byte-in-command": "the command contains a zero byte: correct the group's command",
    "zero-byte-in-directory": "the directory contains a zero byte: correct the group's settings",
    "command-not-allowed": "the group's command is not allowed on this node, whose agent is limited to "
    "{allowed}: start it with another --allow, or change the group's command",
    "impossible-variables": "{names}: cannot be set as variables; correct the group's settings",
    "variables-not-allowed": "the group sets {names}, but this node's agent is limited to commands, which"
    " variables could change: remove them, or set them in a script it allows",
    "directory-not-allowed": "the group starts in {directory}, but this node's agent is limited to "
    "commands in its own directory: leave the directory empty",
    "directory-missing": "the directory {directory} is missing on this node: create it, or start the "
    "agent with another --directory",
    "directory-closed": "no permission to enter the directory {directory}: correct its permissions",
    "program-missing": "no program {file}: correct the command, or copy the file to this node",
    "program-not-executable": "{file} is not executable: chmod +x it, or start it with its interpreter",
    "program-not-in-path": "{program} is not in this agent's PATH ({path}): use its full path, or start "
    "the agent in the job's environment",
    "port-taken": "port {port} is in use by {holders}: stop it, or set another Master port",
    "unseen-process": "a process that is not visible here",
    "port-unusable": "cannot listen on port {port}: {problem}; set another Master port",
    "master-unresolved": "the Master address {master} cannot be resolved on this node: {problem}; add it "
    "to /etc/hosts or DNS, or use an address that every node knows",
    "state-trouble": "{problem}: check this agent's --state folder",
    # How a run ended, as seen by its agent.
    "stopped-by-order": "stopped by the server's order",
    "stopped-by-agent": "the agent of this node was stopped",
    "agent-gone": "the agent of this node is gone",
    "stopped-with-kills": "{reason}; processes that had to be killed: {count}",
    "killed": "killed by {signal}",
    "leftovers": "its supervisor is gone; its processes are being stopped",
    "lost-rebooted": "lost: this machine was rebooted after the worker had become ready",
    "lost-not-ready": "lost: this agent has no record of being ready for it",
    "lost-supervisor": "lost: its supervisor is gone, so it is unknown how it ended",
    "lost-never-started": "lost: it was due to start and never did",
    "lost-start-failed": "lost: {problem}",
}

TEMPLATES: Mapping[str, str] = {**WORDS, **ENGLISH}


def message(sentence: Sentence) -> Phrase:
    """Return a sentence as a message. Raises KeyError for a code of another version."""
    return phrase(sentence, TEMPLATES)


def english(sentence: Sentence) -> str:
    """Return a sentence in English. Raises KeyError for a code of another version."""
    return str(message(sentence))
