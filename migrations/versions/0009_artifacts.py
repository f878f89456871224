"""Create artefacts, cut into chunks: replicas share nothing but the database."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("sha256", name="pk_artifacts"),
    )
    op.create_table(
        "artifact_chunks",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("sha256", "number", name="pk_artifact_chunks"),
        sa.ForeignKeyConstraint(["sha256"], ["artifacts.sha256"], name="fk_artifact_chunks_sha256", ondelete="CASCADE"),
    )
    # Artefacts are compressed already.
    op.execute("ALTER TABLE artifact_chunks ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("artifact_chunks")
    op.drop_table("artifacts")
