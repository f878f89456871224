"""Attribute measurements to uploads and their keys, and keep doubtful ones apart."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLES = ("measurements", "operator_measurements")


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("key_id", sa.Integer),
        sa.Column("rows", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_key_id", "uploads", ["key_id"])
    op.create_table(
        "doubtful_measurements",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("id", "kind", "gpu_id", "name", "software", "source")),
        sa.Column("body", postgresql.JSONB, nullable=False),
        sa.Column("expected_s", sa.Double, nullable=False),
        sa.Column("upload_id", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("id", name="pk_doubtful_measurements"),
    )
    op.create_index("ix_doubtful_measurements_upload_id", "doubtful_measurements", ["upload_id"])
    for table in TABLES:
        op.add_column(table, sa.Column("upload_id", sa.BigInteger))
        given = sa.text("upload_id IS NOT NULL")
        op.create_index(f"ix_{table}_upload_id", table, ["upload_id"], postgresql_where=given)


def downgrade() -> None:
    for table in TABLES:
        op.drop_index(f"ix_{table}_upload_id", table)
        op.drop_column(table, "upload_id")
    op.drop_table("doubtful_measurements")
    op.drop_table("uploads")
