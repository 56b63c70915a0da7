"""The table of weights, and what must hold for it whatever the weights are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from platform_launch.why.lines.opening import OpenedLog
from platform_launch.why.messages.signatures import catalogue
from platform_launch.why.rank.claims import claims_of
from platform_launch.why.rank.weights import WEIGHTS
from platform_launch.why.reading.reader import LogReader
from platform_launch.why.sources import LogSource
from tests.why.conftest import Explain, uncaught
from tests.why.corpus import Case, cases

ACTOR = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
RESET = "[rank{}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection reset by peer [10.0.0.2]:4077\n"
EXITED = "srun: error: gn03: task 5: Exited with exit code 1\n"
POD = "Pod: train.job-worker-1 exited with code 137\n"
LOST = "[rank3]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
MEMORY = uncaught("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "[rank3]: ")
CODE = uncaught("KeyError: 'labels'", "[rank3]: ")


def _marks(logs: Sequence[Case]) -> set[str]:
    marks = set[str]()
    for case in logs:
        with closing(OpenedLog(case.log)) as stream:
            nodes = LogReader(LogSource(str(case.log), stream), catalogue()).read()
        marks |= {mark for claim in claims_of(nodes, catalogue()) for mark in claim.marks}
    return marks


def test_every_mark_of_the_corpus_has_a_weight() -> None:
    assert _marks(cases()) - WEIGHTS.keys() == set()


@pytest.mark.parametrize("envelope", [ACTOR, RESET.format(0), EXITED, POD, LOST])
@pytest.mark.parametrize(("evidence", "cause"), [(MEMORY, "cuda_out_of_memory"), (CODE, "python_exception")])
def test_an_envelope_never_outranks_specific_evidence_above_or_below_it(
    explain_text: Explain, envelope: str, evidence: str, cause: str
) -> None:
    assert explain_text(evidence + envelope).cause == cause
    assert explain_text(envelope + evidence).cause == cause


@pytest.mark.parametrize("envelope", [ACTOR, RESET.format(0), POD])
def test_an_envelope_on_one_node_does_not_outrank_what_another_node_raised(
    explain_text: Explain, envelope: str
) -> None:
    for logs in ((envelope, MEMORY), (MEMORY, envelope)):
        assert explain_text(*logs).cause == "cuda_out_of_memory"


def test_an_envelope_answers_where_nothing_else_does(explain_text: Explain) -> None:
    assert explain_text(ACTOR).cause == "ray_actor_died"
    assert explain_text(RESET.format(0)).cause == "connection_lost"


def test_tasks_that_were_killed_after_one_had_failed_are_not_the_cause(explain_text: Explain) -> None:
    failed, killed = (
        "srun: error: gn1: task 3: Exited with exit code 1\n",
        "srun: error: gn2: task 4: Killed\n",
    )
    verdict = explain_text(failed + killed)
    assert (verdict.cause, str(verdict.where)) == ("exited_first", "host gn1, task 3")
    assert explain_text(killed + failed).cause == "killed"
