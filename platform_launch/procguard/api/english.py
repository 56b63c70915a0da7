"""The English words of sentences (``sentences.py``) by code, with the values they are filled in with."""

from __future__ import annotations

from collections.abc import Mapping

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
    # Events of nodes and people.
    "joined": "{workers} worker(s) on {host}, {limit}",
    "taken-over": "{joined}; the agent on {host} was silent",
    "rejoined": "{joined}; changed: {field}",
    "any-command": "any command",
    "limited-to": "limited to {count} command(s)",
    "name-taken": "an agent on {host} asked for the name; {owner} has it",
    "wrong-token": "wrong join token, from {address}",
    "from-address": "from {address}",
    "role": "{role}",
    "token": "{label}: {role} until {day}",
    # Why a worker, and with it a group, failed.
    "silent": "no heartbeat for {seconds} s",
    "newer-run": "reports generation {reported}, newer than this run's ({run}): is the server's database "
    "an old copy? Start the group again",
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
}
