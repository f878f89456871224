"""Say which part a revision changed and which rows it added, so that processes load only these."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "revision_parts",
        sa.Column("part", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("part", name="pk_revision_parts"),
    )
    op.add_column("operator_measurements", sa.Column("added", sa.BigInteger))
    op.create_index("ix_operator_measurements_added", "operator_measurements", ["added"])


def downgrade() -> None:
    op.drop_index("ix_operator_measurements_added", "operator_measurements")
    op.drop_column("operator_measurements", "added")
    op.drop_table("revision_parts")
