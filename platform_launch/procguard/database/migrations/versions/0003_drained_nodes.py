"""Nodes that are drained: nothing new starts on them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add who drained a node, empty where nobody did."""
    op.add_column("nodes", sa.Column("drained_by", sa.String(64), nullable=False, server_default=""))
