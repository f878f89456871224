"""Tables of strangers, decoded in a process of their own."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.errors import TooLarge
from app.runtime.apart import Apart
from app.wire.table_files import PARQUET, read_apart


def test_a_table_is_read_and_its_errors_are_those_of_the_reader() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"m": [1, 2, 3], "op": ["a", "b", "a"]}), file)
    apart = Apart()
    try:
        read = read_apart(apart)
        assert read(file.getvalue(), PARQUET, 10)["m"].to_pylist() == [1, 2, 3]
        with pytest.raises(TooLarge, match="At most 2 rows"):
            read(file.getvalue(), PARQUET, 2)
        with pytest.raises(ValueError, match="Parquet"):
            read(b"PAR1 nothing PAR1", PARQUET, 2)
    finally:
        apart.stop()
