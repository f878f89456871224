"""Create tables of measured operators: shared attributes once per context, and only figures per row."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, UUID

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "operator_contexts",
        sa.Column("id", sa.Integer, sa.Identity(), nullable=False),
        sa.Column("digest", UUID, nullable=False),
        sa.Column("op", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("fields", ARRAY(sa.Text), nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("software", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("kernel", sa.Text),
        sa.Column("measurements", sa.BigInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_operator_contexts"),
    )
    op.create_index("uq_operator_contexts_digest", "operator_contexts", ["digest"], unique=True)
    op.create_table(
        "operator_measurements",
        sa.Column("id", UUID, nullable=False),
        sa.Column("context_id", sa.Integer, nullable=False),
        sa.Column("latency_s", sa.Double, nullable=False),
        sa.Column("dims", ARRAY(sa.Double), nullable=False),
        sa.Column("latency_std_s", sa.Double),
        sa.Column("runs", sa.Integer),
        sa.Column("clock_hz", sa.Double),
        sa.Column("power_w", sa.Double),
        sa.Column("measured_at", sa.DateTime(timezone=True)),
        sa.Column("grid", ARRAY(sa.Integer)),
        sa.Column("block", ARRAY(sa.Integer)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("latency_s > 0", name="latency"),
        sa.PrimaryKeyConstraint("id", name="pk_operator_measurements"),
    )
    op.create_index("ix_operator_measurements_context_id", "operator_measurements", ["context_id"])


def downgrade() -> None:
    op.drop_table("operator_measurements")
    op.drop_table("operator_contexts")
