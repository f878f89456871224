"""Record of prices their term, the devices of their instance, and whether they ship.

Spot prices said so in their provider's name.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_SAID = ("gpu_id", "provider", "region", "dated", "usd_per_hour", "source")
_SPOT = " (interruptible)"


def upgrade() -> None:
    op.add_column("prices", sa.Column("term", sa.Text, nullable=False, server_default=sa.text("'on_demand'")))
    op.add_column("prices", sa.Column("devices", sa.Integer, nullable=False, server_default=sa.text("1")))
    op.add_column("prices", sa.Column("shipped", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.add_column("prices", sa.Column("withdrawn_at", sa.DateTime(timezone=True)))
    op.create_check_constraint(op.f("ck_prices_term"), "prices", "term IN ('on_demand', 'spot', 'reserved')")
    op.create_check_constraint(op.f("ck_prices_devices"), "prices", "devices >= 1")
    op.drop_index("uq_prices_said", "prices")
    op.create_index("uq_prices_said", "prices", [*_SAID, "term", "devices", "shipped"], unique=True)
    op.execute(
        f"UPDATE prices SET term = 'spot', provider = left(provider, -{len(_SPOT)}) WHERE provider LIKE '%{_SPOT}'"
    )


def downgrade() -> None:
    """Name spot prices by their provider again, and drop what earlier releases have no place for."""
    op.execute("DELETE FROM prices WHERE shipped OR term = 'reserved'")
    op.execute(f"UPDATE prices SET provider = provider || '{_SPOT}' WHERE term = 'spot'")
    op.execute(
        "DELETE FROM prices AS one USING prices AS other WHERE one.id > other.id AND "
        + " AND ".join(f"one.{name} = other.{name}" for name in _SAID)
    )
    op.drop_index("uq_prices_said", "prices")
    op.create_index("uq_prices_said", "prices", _SAID, unique=True)
    for name in ("term", "devices", "shipped", "withdrawn_at"):
        op.drop_column("prices", name)
