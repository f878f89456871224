"""Create API keys with roles."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer, sa.Identity(), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("sha256", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("role IN ('read', 'predict', 'contribute', 'admin')", name="role"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("uq_api_keys_sha256", "api_keys", ["sha256"], unique=True)


def downgrade() -> None:
    op.drop_table("api_keys")
