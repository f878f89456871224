"""Create GPUs, measurements, predictor versions, retraining jobs, and the revision of changes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def time_column(name: str, *, now: bool = False) -> sa.Column:
    default = sa.func.now() if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not now, server_default=default)


def upgrade() -> None:
    gpus()
    measurements()
    predictor_versions()
    retrain_jobs()
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_revision"),
    )
    op.execute("INSERT INTO revision (id, value) VALUES (1, 0)")


def gpus() -> None:
    op.create_table(
        "gpus",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("spec", JSONB, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        time_column("updated_at", now=True),
        sa.CheckConstraint("origin IN ('seed', 'user', 'import')", name="origin"),
        sa.PrimaryKeyConstraint("id", name="pk_gpus"),
    )


def measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("software", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("workload", JSONB, nullable=False),
        sa.Column("latency_s", sa.Double, nullable=False),
        sa.Column("latency_std_s", sa.Double),
        sa.Column("runs", sa.Integer),
        sa.Column("phases_s", JSONB),
        sa.Column("kernel", JSONB),
        sa.Column("clock_hz", sa.Double),
        sa.Column("power_w", sa.Double),
        sa.Column("source", sa.Text, nullable=False),
        time_column("measured_at"),
        time_column("created_at", now=True),
        sa.CheckConstraint("latency_s > 0", name="latency"),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
    )
    op.create_index("ix_measurements_kind_gpu_id", "measurements", ["kind", "gpu_id"])
    op.create_index("ix_measurements_name", "measurements", ["name"])


def predictor_versions() -> None:
    op.create_table(
        "predictor_versions",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("predictor", sa.Text, nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("artifact_sha256", sa.Text, nullable=False),
        sa.Column("training_set_sha256", sa.Text, nullable=False),
        sa.Column("card", JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        time_column("created_at", now=True),
        sa.CheckConstraint("state IN ('candidate', 'served', 'retired', 'kept_back')", name="state"),
        sa.PrimaryKeyConstraint("id", name="pk_predictor_versions"),
    )
    columns = ["predictor", "gpu_id"]
    op.create_index("uq_predictor_versions_version", "predictor_versions", [*columns, "version"], unique=True)
    served = sa.text("state = 'served'")
    op.create_index("uq_predictor_versions_served", "predictor_versions", columns, unique=True, postgresql_where=served)


def retrain_jobs() -> None:
    op.create_table(
        "retrain_jobs",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("predictor", sa.Text, nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.Text),
        sa.Column("result", JSONB),
        sa.Column("reason", sa.Text),
        time_column("created_at", now=True),
        time_column("started_at"),
        time_column("finished_at"),
        sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed')", name="state"),
        sa.PrimaryKeyConstraint("id", name="pk_retrain_jobs"),
    )
    queued = sa.text("state = 'queued'")
    columns = ["predictor", "gpu_id"]
    op.create_index("uq_retrain_jobs_queued", "retrain_jobs", columns, unique=True, postgresql_where=queued)


def downgrade() -> None:
    for table in ("revision", "retrain_jobs", "predictor_versions", "measurements", "gpus"):
        op.drop_table(table)
