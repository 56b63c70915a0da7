"""How Alembic runs the migrations: on the connection it is given, in the transaction that is open."""

from __future__ import annotations

from alembic import context

from platform_launch.procguard.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
