"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "groups",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("phase_since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.Text()),
        sa.Column("restarts_used", sa.Integer(), nullable=False),
        sa.Column("then_phase", sa.String(16)),
        sa.Column("failure", sa.Text()),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_groups"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("instance", sa.String(64), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("credential_sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
        sa.UniqueConstraint("credential_sha256", name="uq_nodes_credential_sha256"),
    )
    op.create_table(
        "workers",
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("group_name", sa.String(64)),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_workers_node", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["group_name"], ["groups.name"], name="fk_workers_group_name", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("node", "number", name="pk_workers"),
    )
    op.create_index("ix_workers_group_name", "workers", ["group_name"])
    op.create_table(
        "users",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    op.create_table(
        "events",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("object", sa.String(140), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "server",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_server"),
    )
