"""Jobs made of roles (chief, worker, ps …), where an index counts from 0 in every role.

Node ranks count over the training roles in their order. Two nodes would have rank 0 if an index were taken
for a rank, and a parameter server must not join the training world at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from platform_launch.environment import Sourced
from platform_launch.errors import shown, shown_list
from platform_launch.platforms.reading import Reading
from platform_launch.text import Phrase, counted, joined
from platform_launch.values import dataclass

LEADERS = ("MASTER", "CHIEF")
NOT_TRAINING = frozenset(
    {"PS", "PARAMETERSERVER", "PARAMETER_SERVER", "SERVER", "SCHEDULER", "EVALUATOR", "TENSORBOARD"}
)


@dataclass(frozen=True)
class Role:
    """One role of a job: its name as written, how many nodes it has and, if known, their hosts."""

    name: str
    count: Sourced[int]
    hosts: tuple[str, ...] = ()


def training_roles(roles: Sequence[Role]) -> tuple[Role, ...]:
    """Return the roles whose nodes train, leaders first, the rest in the order given."""
    training = [role for role in roles if role.count.value and not is_not_training(role.name)]
    return tuple(sorted(training, key=lambda role: role.name.upper() not in LEADERS))


def is_not_training(name: str) -> bool:
    """Return whether a role supports the job without being part of its world."""
    return name.upper().replace("-", "_") in NOT_TRAINING


def rank_by_role(reading: Reading, roles: Sequence[Role], own_role: str, index: Sourced[int] | None) -> None:
    """Set nodes and node rank from the training roles and this node's role and index in it.

    Adds a problem if the role does not train, does not exist or has fewer nodes than the index requires.
    """
    training = training_roles(roles)
    total = sum(role.count.value for role in training)
    reading.nnodes = Sourced(total, " + ".join(role.count.source for role in training)) if total else None
    reading.node_rank = None
    own = next((role for role in training if role.name == own_role), None)
    if own is None:
        names = shown_list([role.name for role in training]) or Phrase("none")
        reading.refuse(
            "node_rank",
            Phrase(
                "this node's role is {role}, which is not a training role (training roles: {names})",
                role=shown(own_role),
                names=names,
            ),
            "start this command on the training roles only, or pass --nnodes --node-rank --master-addr",
        )
        return
    if index is None:
        return
    if index.value >= own.count.value:
        reading.refuse(
            "node_rank",
            Phrase(
                "{index_source}={index}, but role {role} has {nodes} ({count_source}): expected 0–{last}",
                index_source=index.source,
                index=index.value,
                role=own_role,
                nodes=counted(own.count.value, "node"),
                count_source=own.count.source,
                last=own.count.value - 1,
            ),
        )
    before = training[: training.index(own)]
    offset = sum(role.count.value for role in before)
    note = (
        Phrase(" + {offset} of {roles}", offset=offset, roles=joined(role.name for role in before))
        if before
        else ""
    )
    reading.node_rank = Sourced(
        offset + index.value, Phrase("{index_source}{note}", index_source=index.source, note=note)
    )
