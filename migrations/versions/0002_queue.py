"""Create the job queue: Procrastinate's schema of version 3.10 (MIT licence), stored unchanged beside this folder.

A Procrastinate release that changes its schema gets a migration of its own, from the files it ships.
"""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SCHEMA = Path(__file__).parent.parent / "procrastinate_3_10.sql"

DROP = """
DO $$
DECLARE
    item record;
BEGIN
    FOR item IN SELECT c.oid::regclass AS name FROM pg_class c
        WHERE c.relkind = 'r' AND c.relname LIKE 'procrastinate\\_%' AND c.relnamespace = current_schema()::regnamespace
    LOOP
        EXECUTE format('DROP TABLE %s CASCADE', item.name);
    END LOOP;
    FOR item IN SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.proname LIKE 'procrastinate\\_%' AND p.pronamespace = current_schema()::regnamespace
    LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', item.name);
    END LOOP;
    FOR item IN SELECT t.oid::regtype AS name FROM pg_type t
        WHERE t.typname LIKE 'procrastinate\\_%' AND t.typtype IN ('e', 'c')
        AND t.typnamespace = current_schema()::regnamespace
    LOOP
        EXECUTE format('DROP TYPE %s CASCADE', item.name);
    END LOOP;
END;
$$
"""


def run(statements: str) -> None:
    # Past SQLAlchemy, whose parameter marks (colons and per cent signs) the text is full of.
    op.get_bind().connection.driver_connection.execute(statements)


def upgrade() -> None:
    run(SCHEMA.read_text())


def downgrade() -> None:
    run(DROP)
