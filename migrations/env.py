"""Runs the migrations on the connection that `app.store.schema` hands over."""

from alembic import context

import app.store.sql_tables  # noqa: F401 - fills METADATA
from app.store.schema import is_ours
from app.store.sql_tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    include_name=is_ours,
    compare_type=True,
    compare_server_default=True,
)
context.run_migrations()
