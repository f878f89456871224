"""Record which API key saved an answer or a graph, and a token that shares an answer with others."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# 244 random bits; the code makes its own for later rows.
_TOKENS = "UPDATE saved_predictions SET share = replace(concat(gen_random_uuid(), gen_random_uuid()), '-', '')"


def upgrade() -> None:
    op.add_column("saved_predictions", sa.Column("key_id", sa.Integer))
    op.add_column("saved_predictions", sa.Column("share", sa.Text))
    op.execute(_TOKENS)
    op.create_index("ix_saved_predictions_key_id_id", "saved_predictions", ["key_id", "id"])
    op.create_table(
        "graph_owners",
        sa.Column("graph_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("graph_id", "key_id", name="pk_graph_owners"),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name="fk_graph_owners_graph_id", ondelete="CASCADE"),
    )
    op.create_index("ix_graph_owners_key_id", "graph_owners", ["key_id"])
    op.add_column("api_keys", sa.Column("first_id", sa.Integer))


def downgrade() -> None:
    op.drop_column("api_keys", "first_id")
    op.drop_table("graph_owners")
    op.drop_index("ix_saved_predictions_key_id_id", "saved_predictions")
    op.drop_column("saved_predictions", "share")
    op.drop_column("saved_predictions", "key_id")
