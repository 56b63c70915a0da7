"""The history of runs; a group's runs have numbers of their own, from 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of runs. Groups that ran before go on counting where they were."""
    op.add_column("groups", sa.Column("run_number", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("groups", sa.Column("requested_by", sa.String(64), nullable=False, server_default=""))
    op.add_column("groups", sa.Column("requested_at", sa.DateTime(timezone=True)))
    op.add_column("groups", sa.Column("previous_failure", sa.Text()))
    op.execute("UPDATE groups SET run_number = generation")
    op.create_table(
        "runs",
        sa.Column("group_name", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("requested_by", sa.String(64), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("restart", sa.Integer(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("workers", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("outcome", sa.String(16)),
        sa.Column("failure", sa.Text()),
        sa.ForeignKeyConstraint(
            ["group_name"], ["groups.name"], name="fk_runs_group_name", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("group_name", "number", name="pk_runs"),
    )
