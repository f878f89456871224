"""What the engine keeps of stored operators from one look at the database to the next."""

from app.config import Settings
from app.services.assemble import Stores, assemble
from app.services.engine import Engine
from app.services.measurements.ingest import ingest
from app.services.measurements.upload import Objects, Upload
from app.store.session import Database
from app.tables.measurements import Measurements
from tests.api.test_operator_learning import uploads
from tests.unit.test_candidate import made

V100 = "tesla-v100-pcie-32gb"


def upload(rows: Measurements) -> Upload:
    return Upload((Objects.of(uploads(rows, V100)),))


def test_rows_are_read_again_only_when_there_are_more(settings: Settings, database: Database) -> None:
    stores = Stores.of(settings)

    def look(last: Engine | None = None) -> Engine:
        with database.begin() as connection:
            return assemble(connection, stores, last)[0]

    empty = look()
    assert len(empty.operators.index) == 0
    ingest(database, empty, upload(made(V100).rows))
    first = look(empty)
    assert first.operators.counts == {V100: 27}
    again = look(first)
    assert again.operators is first.operators
    assert all(again.served[key] is one for key, one in first.served.items())
    auto = first.served["auto", "*"]
    assert auto.plain is not None
    ingest(database, again, upload(made(V100, seed=7).rows))
    more = look(again)
    assert more.operators.counts == {V100: 54}
    assert more.served["auto", "*"].plain is auto.plain
