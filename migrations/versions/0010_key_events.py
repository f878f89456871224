"""Let API keys expire, and record what is done to them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.create_table(
        "key_events",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("key_id", sa.Integer, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("action IN ('created', 'rotated', 'revoked')", name="action"),
        sa.PrimaryKeyConstraint("id", name="pk_key_events"),
    )


def downgrade() -> None:
    op.drop_table("key_events")
    op.drop_column("api_keys", "expires_at")
