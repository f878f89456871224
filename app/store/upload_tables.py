"""Tables of uploads: who sent measurements, and those that were not taken for right."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Identity, Index, Integer, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from app.store.metadata import METADATA, created

# Uploads over HTTP, and whose key sent them.
UPLOADS = Table(
    "uploads",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("key_id", Integer),
    Column("rows", BigInteger, nullable=False, server_default="0"),
    created(),
    Index(None, "key_id"),
)

# Measurements far from what was expected, which nothing learns. `body` is the row as POST /measurements takes it.
DOUBTFUL_MEASUREMENTS = Table(
    "doubtful_measurements",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("gpu_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("software", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("expected_s", Double, nullable=False),
    Column("upload_id", BigInteger, nullable=False),
    created(),
    Index(None, "upload_id"),
)

# Refused measurements that passed a GPU's limit: `value` is what the limiting figure must at least be, SI units.
LIMIT_BREACHES = Table(
    "limit_breaches",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("gpu_id", Text, nullable=False),
    Column("figure", Text, nullable=False),
    Column("value", Double, nullable=False),
    Column("key_id", Integer),
    created(),
    Index(None, "gpu_id", "figure"),
)

# Figures that such measurements raised, a row for each key that sent some of them; as `before`, they were `provenance`.
RAISED_LIMITS = Table(
    "raised_limits",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("gpu_id", Text, nullable=False),
    Column("figure", Text, nullable=False),
    Column("value", Double, nullable=False),
    Column("before", Double, nullable=False),
    Column("provenance", Text, nullable=False),
    Column("key_id", Integer),
    created(),
    Index(None, "gpu_id", "figure"),
)
