"""Record which limits of GPUs measurements raised, so that they can be taken back with their contributor."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "raised_limits",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("figure", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("before", sa.Double, nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("key_id", sa.Integer),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("id", name="pk_raised_limits"),
    )
    op.create_index("ix_raised_limits_gpu_id_figure", "raised_limits", ["gpu_id", "figure"])


def downgrade() -> None:
    op.drop_table("raised_limits")
