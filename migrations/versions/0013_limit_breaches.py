"""Record measurements beyond a GPU's limits, which correct the limits if they repeat."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "limit_breaches",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("figure", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("key_id", sa.Integer),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("id", name="pk_limit_breaches"),
    )
    op.create_index("ix_limit_breaches_gpu_id_figure", "limit_breaches", ["gpu_id", "figure"])


def downgrade() -> None:
    op.drop_table("limit_breaches")
