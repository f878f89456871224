"""Record which API key sent a price, so that the prices of a contributor can be withdrawn."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prices", sa.Column("key_id", sa.Integer))


def downgrade() -> None:
    op.drop_column("prices", "key_id")
