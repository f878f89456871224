"""The tables, as SQLAlchemy Core metadata: what the migrations build and `gpucast migrate check` compares.

Rows of a table are read as records, dataclasses whose fields have the names of its columns.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Date,
    DateTime,
    Double,
    Executable,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID
from sqlalchemy.types import TypeEngine

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


R = TypeVar("R")


def columns_of(table: Table, record: type[Any]) -> list[Column[Any]]:
    """Return the columns of a table that have the names of a dataclass's fields."""
    return [table.c[item.name] for item in fields(record)]


def records(connection: Connection, statement: Executable, record: type[R]) -> list[R]:
    """Return the rows of a statement as such dataclasses."""
    return [record(**row._mapping) for row in connection.execute(statement)]


def required(kind: type[TypeEngine[Any]] | TypeEngine[Any], *names: str) -> list[Column[Any]]:
    """Return columns of one type that are never NULL."""
    return [Column(name, kind, nullable=False) for name in names]


def optional(kind: type[TypeEngine[Any]] | TypeEngine[Any], *names: str) -> list[Column[Any]]:
    """Return columns of one type."""
    return [Column(name, kind) for name in names]


def created() -> Column[object]:
    """Return the time of a row's insertion."""
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


# Uploads over HTTP, and whose key sent them.
UPLOADS = Table(
    "uploads",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("key_id", Integer),
    Column("rows", BigInteger, nullable=False, server_default="0"),
    created(),
    Column("revision", BigInteger),
    Index(None, "key_id"),
    Index(None, "revision", postgresql_where=text("revision IS NOT NULL")),
)

# Measurements far from what was expected, which nothing learns. `body` is the row as POST /measurements takes it.
DOUBTFUL_MEASUREMENTS = Table(
    "doubtful_measurements",
    METADATA,
    Column("id", Text, primary_key=True),
    *required(Text, "kind", "gpu_id", "name", "software", "source"),
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
    *required(Text, "gpu_id", "figure"),
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
    *required(Text, "gpu_id", "figure"),
    *required(Double, "value", "before"),
    Column("provenance", Text, nullable=False),
    Column("key_id", Integer),
    created(),
    Index(None, "gpu_id", "figure"),
)


GPUS = Table(
    "gpus",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("spec", JSONB, nullable=False),
    Column("origin", Text, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("origin IN ('seed', 'user', 'import')", name="origin"),
)

MEASUREMENTS = Table(
    "measurements",
    METADATA,
    Column("id", Text, primary_key=True),
    *required(Text, "gpu_id", "software", "kind", "name"),
    Column("workload", JSONB, nullable=False),
    Column("latency_s", Double, nullable=False),
    Column("latency_std_s", Double),
    Column("runs", Integer),
    *optional(JSONB, "phases_s", "kernel"),
    *optional(Double, "clock_hz", "power_w"),
    Column("source", Text, nullable=False),
    Column("measured_at", DateTime(timezone=True)),
    created(),
    Column("upload_id", BigInteger),
    Index(None, "kind", "gpu_id"),
    Index(None, "name"),
    Index(None, "upload_id", postgresql_where=text("upload_id IS NOT NULL")),
    CheckConstraint("latency_s > 0", name="latency"),
)

# Attributes shared by many operator rows, stored once. `fields` names the entries of `dims`.
OPERATOR_CONTEXTS = Table(
    "operator_contexts",
    METADATA,
    Column("id", Integer, Identity(), primary_key=True),
    Column("digest", UUID, nullable=False),
    *required(Text, "op", "dtype"),
    Column("fields", ARRAY(Text), nullable=False),
    *required(Text, "gpu_id", "software", "source"),
    Column("kernel", Text),
    Column("measurements", BigInteger, nullable=False, server_default="0"),
    Index("uq_operator_contexts_digest", "digest", unique=True),
)

OPERATOR_MEASUREMENTS = Table(
    "operator_measurements",
    METADATA,
    Column("id", UUID, primary_key=True),
    Column("context_id", Integer, nullable=False),
    Column("latency_s", Double, nullable=False),
    Column("dims", ARRAY(Double), nullable=False),
    Column("latency_std_s", Double),
    Column("runs", Integer),
    *optional(Double, "clock_hz", "power_w"),
    Column("measured_at", DateTime(timezone=True)),
    *optional(ARRAY(Integer), "grid", "block"),
    created(),
    *optional(BigInteger, "added", "upload_id"),
    Index(None, "context_id"),
    Index(None, "added"),
    Index(None, "upload_id", postgresql_where=text("upload_id IS NOT NULL")),
    CheckConstraint("latency_s > 0", name="latency"),
)

PREDICTOR_VERSIONS = Table(
    "predictor_versions",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    *required(Text, "predictor", "gpu_id", "version", "artifact_sha256", "training_set_sha256"),
    Column("card", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    created(),
    Index("uq_predictor_versions_version", "predictor", "gpu_id", "version", unique=True),
    Index(
        "uq_predictor_versions_served", "predictor", "gpu_id", unique=True, postgresql_where=text("state = 'served'")
    ),
    CheckConstraint("state IN ('candidate', 'served', 'retired', 'kept_back')", name="state"),
)

# Artefacts by their SHA-256; the file is its chunks, joined by number.
ARTIFACTS = Table(
    "artifacts",
    METADATA,
    Column("sha256", Text, primary_key=True),
    Column("manifest", Text, nullable=False),
    created(),
)

ARTIFACT_CHUNKS = Table(
    "artifact_chunks",
    METADATA,
    Column("sha256", Text, ForeignKey("artifacts.sha256", name="fk_artifact_chunks_sha256", ondelete="CASCADE")),
    Column("number", Integer),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("sha256", "number"),
)

RETRAIN_JOBS = Table(
    "retrain_jobs",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    *required(Text, "predictor", "gpu_id", "state"),
    Column("version", Text),
    Column("result", JSONB),
    Column("reason", Text),
    created(),
    *optional(DateTime(timezone=True), "started_at", "finished_at"),
    Index("uq_retrain_jobs_queued", "predictor", "gpu_id", unique=True, postgresql_where=text("state = 'queued'")),
    CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed')", name="state"),
)

# Uploaded networks: `body` is the canonical JSON whose hash is the id; figures are those for `dims`.
GRAPHS = Table(
    "graphs",
    METADATA,
    Column("id", Text, primary_key=True),
    *required(Text, "form", "name", "body"),
    Column("nodes", Integer, nullable=False),
    *required(Double, "parameters", "flops"),
    *required(JSONB, "unknown", "dims"),
    created(),
    CheckConstraint("form IN ('json', 'onnx')", name="form"),
)

# Keys that stored a graph; one without any is everybody's.
GRAPH_OWNERS = Table(
    "graph_owners",
    METADATA,
    Column("graph_id", Text, ForeignKey("graphs.id", name="fk_graph_owners_graph_id", ondelete="CASCADE")),
    Column("key_id", Integer),
    created(),
    PrimaryKeyConstraint("graph_id", "key_id"),
    Index(None, "key_id"),
)

# `sha256` is the hash of the key, which is not stored; `first_id` the first of the keys that it succeeds by rotation.
API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", Integer, Identity(), primary_key=True),
    *required(Text, "name", "role"),
    Column("sha256", LargeBinary, nullable=False),
    created(),
    *optional(DateTime(timezone=True), "revoked_at", "expires_at"),
    Column("first_id", Integer),
    Index("uq_api_keys_sha256", "sha256", unique=True),
    CheckConstraint("role IN ('read', 'predict', 'contribute', 'admin')", name="role"),
)

# What was done to keys, and by whom; rows are only added.
KEY_EVENTS = Table(
    "key_events",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("key_id", Integer, nullable=False),
    *required(Text, "action", "actor"),
    created(),
    CheckConstraint("action IN ('created', 'rotated', 'revoked')", name="action"),
)

# Imported measurement files that ship with the code.
SEED_FILES = Table(
    "seed_files",
    METADATA,
    Column("sha256", Text, primary_key=True),
    Column("name", Text, nullable=False),
    created(),
)

# Prices of one device per hour; "" is any provider or region. `devices`: of the instance that is rented as a whole.
# `withdrawn_at`: when a release came that ships a price no longer.
PRICE_KEY = ("gpu_id", "provider", "region", "dated", "usd_per_hour", "source", "term", "devices", "shipped")
PRICES = Table(
    "prices",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("gpu_id", Text, nullable=False),
    Column("usd_per_hour", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("dated", Date, nullable=False),
    *required(Text, "provider", "region"),
    created(),
    Column("key_id", Integer),
    Column("term", Text, nullable=False, server_default=text("'on_demand'")),
    Column("devices", Integer, nullable=False, server_default=text("1")),
    Column("shipped", Boolean, nullable=False, server_default=text("false")),
    Column("withdrawn_at", DateTime(timezone=True)),
    Index("uq_prices_said", *PRICE_KEY, unique=True),
    CheckConstraint("usd_per_hour >= 0", name="price"),
    CheckConstraint("term IN ('on_demand', 'spot', 'reserved')", name="term"),
    CheckConstraint("devices >= 1", name="devices"),
)

# `request` and `answer` are JSON text as sent: JSONB would reformat it. One without `key_id` is everybody's; whoever
# knows its token `share` may read it.
SAVED_PREDICTIONS = Table(
    "saved_predictions",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    *required(Text, "kind", "workload", "request", "answer"),
    Column("versions", JSONB, nullable=False),
    created(),
    Column("key_id", Integer),
    Column("share", Text),
    Index(None, "key_id", "id"),
    CheckConstraint("kind IN ('predict', 'compare', 'plan')", name="kind"),
)

REVISION = Table(
    "revision",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)

# The last revision that changed each part of what processes load.
REVISION_PARTS = Table(
    "revision_parts",
    METADATA,
    Column("part", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

# Requests of a caller (a digest of it) to one process in a window of the rate limit; a crash may empty the table.
RATE_COUNTS = Table(
    "rate_counts",
    METADATA,
    Column("window", BigInteger),
    *optional(Text, "caller", "process"),
    Column("requests", BigInteger, nullable=False),
    PrimaryKeyConstraint("window", "caller", "process"),
    prefixes=["UNLOGGED"],
)
