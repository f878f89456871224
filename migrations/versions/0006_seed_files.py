"""Create the record of imported shipped measurement files."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seed_files",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("sha256", name="pk_seed_files"),
    )


def downgrade() -> None:
    op.drop_table("seed_files")
