"""Events keep a code and values, to be told in the reader's language; earlier ones stay as they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their column."""
    op.add_column("events", sa.Column("sentence", sa.Text()))
