"""The metadata that all tables are in, and a column that most have."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, MetaData, func

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def created() -> Column[object]:
    """Return the time of a row's insertion."""
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())
