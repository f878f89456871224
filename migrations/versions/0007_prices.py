"""Create imported GPU prices per hour."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "prices",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("gpu_id", sa.Text, nullable=False),
        sa.Column("usd_per_hour", sa.Double, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("dated", sa.Date, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("usd_per_hour >= 0", name="price"),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
    )
    said = ("gpu_id", "provider", "region", "dated", "usd_per_hour", "source")
    op.create_index("uq_prices_said", "prices", said, unique=True)


def downgrade() -> None:
    op.drop_table("prices")
