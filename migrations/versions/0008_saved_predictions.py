"""Create saved answers with their requests and versions."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "saved_predictions",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("versions", JSONB, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("id", name="pk_saved_predictions"),
        sa.CheckConstraint("kind IN ('predict', 'compare', 'plan')", name="kind"),
    )


def downgrade() -> None:
    op.drop_table("saved_predictions")
