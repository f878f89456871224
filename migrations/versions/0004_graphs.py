"""Create uploaded networks, predicted by id."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "graphs",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("parameters", sa.Double, nullable=False),
        sa.Column("flops", sa.Double, nullable=False),
        sa.Column("unknown", JSONB, nullable=False),
        sa.Column("dims", JSONB, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("form IN ('json', 'onnx')", name="form"),
        sa.PrimaryKeyConstraint("id", name="pk_graphs"),
    )


def downgrade() -> None:
    op.drop_table("graphs")
