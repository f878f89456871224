"""Count requests of callers over all replicas, for the rate limit."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rate_counts",
        sa.Column("window", sa.BigInteger, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("window", "caller", "process", name="pk_rate_counts"),
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    op.drop_table("rate_counts")
