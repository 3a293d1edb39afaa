"""Alembic's entry point: runs the migrations on the connection that `schema.prepare` opened."""

from alembic import context

from delegate.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
