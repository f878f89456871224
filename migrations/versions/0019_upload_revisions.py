"""Record the revision of uploads whose rows are inserted before their revision is known: `added` is then -id."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("uploads", sa.Column("revision", sa.BigInteger))
    op.create_index("ix_uploads_revision", "uploads", ["revision"], postgresql_where=sa.text("revision IS NOT NULL"))


def downgrade() -> None:
    """Give up the revisions: processes that start read all rows, whatever their revision."""
    op.drop_index("ix_uploads_revision", "uploads")
    op.drop_column("uploads", "revision")
