import csv
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.errors import BadInput, Malformed, TooLarge, UnsupportedMedia
from app.formats.own import MAX_OBJECTS, read_measurements
from app.wire.measurement_form import Objects
from tests.busy_machine import cpu_s

FLAT = {
    "gpu": "titan-v",
    "software": "cuda",
    "source": "bench",
    "latency_ms": 0.91,
    "name": "saxpy",
    "flops": 2.0,
    "bytes": 12.0,
    "threads_per_block": 256,
    "blocks": 4,
    "registers_per_thread": 12,
    "shared_memory_per_block": 0,
    "n": 1024,
    "kernel.grid": "4x1x1",
}
NESTED = {
    "gpu": "titan-v",
    "software": "cuda",
    "source": "bench",
    "latency_ms": 0.91,
    "kernel": {"grid": [4, 1, 1]},
    "workload": {
        "kind": "kernel",
        "name": "saxpy",
        "flops": 2,
        "bytes": 12,
        "threads_per_block": 256,
        "blocks": 4,
        "registers_per_thread": 12,
        "shared_memory_per_block": 0,
        "size": {"n": 1024},
    },
}


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    handle = io.StringIO()
    writer = csv.DictWriter(handle, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return handle.getvalue().encode()


def as_parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def read(body: bytes, media: str, max_rows: int = 10) -> list[dict[str, Any]]:
    (objects,) = read_measurements(body, media, max_rows=max_rows).parts
    assert isinstance(objects, Objects)
    return list(objects.rows)


def test_the_same_row_in_three_formats() -> None:
    assert read(as_csv([FLAT]), "text/csv; charset=utf-8") == [NESTED]
    assert read(as_parquet({name: [value] for name, value in FLAT.items()}), "application/x-parquet") == [NESTED]
    assert read(b'[{"gpu": "titan-v"}]', "application/json") == [{"gpu": "titan-v"}]


def test_prefixed_columns_as_json_normalize_writes_them() -> None:
    rows = read(b"gpu,workload.kind,workload.size.rows\ntitan-v,kernel,7\n", "text/csv")
    assert rows == [{"gpu": "titan-v", "workload": {"kind": "kernel", "size": {"rows": 7}}}]


def test_empty_cells_and_nulls_are_absent() -> None:
    absent = [{"gpu": "titan-v", "workload": {"kind": "kernel"}}]
    assert read(b"gpu,power_w,n\ntitan-v,,\n\n", "text/csv") == absent
    assert (
        read(as_parquet({"gpu": ["titan-v"], "power_w": pa.array([None], pa.float64())}), "application/x-parquet")
        == absent
    )


def test_timestamps_become_text() -> None:
    stamp = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", tz="UTC"))
    rows = read(as_parquet({"measured_at": stamp}), "application/vnd.apache.parquet")
    assert rows[0]["measured_at"] == "2023-11-14T22:13:20.123456+00:00"


@pytest.mark.parametrize(
    ("body", "loc", "message"),
    [
        (b"gpu,latency_ms\ntitan-v,fast\n", (0, "latency_ms"), "'fast' is not a number"),
        (b"gpu,latency_ms\ntitan-v,1\ntitan-v,1_0\n", (1, "latency_ms"), "not a number"),
        (b"gpu,latency_ms\ntitan-v,1\ntitan-v\n", (1, "latency_ms"), "1 cells where the header names 2 columns"),
        (b"gpu,latency_ms\ntitan-v,1,2\n", (0, "latency_ms"), "3 cells"),
        (b"gpu,kernel.grid\ntitan-v,4xx\n", (0, "kernel.grid"), "64x64x1"),
        (b"gpu,speed\ntitan-v,1\n", ("speed",), "unknown column"),
        (b"gpu,gpu\na,b\n", ("gpu",), "same field as column 'gpu'"),
        (b"n,size.n\n1,2\n", ("size.n",), "same field as column 'n'"),
    ],
)
def test_wrong_csv_names_row_and_column(body: bytes, loc: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(body, "text/csv")
    assert caught.value.errors[0].loc == loc
    assert message in caught.value.errors[0].msg


@pytest.mark.parametrize(
    ("body", "media", "message"),
    [
        (b"", "text/csv", "empty"),
        (b'gpu,source\n"titan-v,x\n', "text/csv", "line 2"),
        (b"gpu\ntitan\xff\n", "text/csv", "byte 9 in line 2"),
        (b"PAR1 no PAR1", "application/x-parquet", "Parquet"),
        (b"", "application/x-parquet", "Parquet"),
        (b"[{]", "application/json", "not valid JSON"),
        (b'["\\ud800"]', "application/json", "not valid JSON"),
        (b"[" * 200_000, "application/json", "nested too deeply"),
    ],
)
def test_bodies_that_cannot_be_parsed(body: bytes, media: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read(body, media)


def test_truncated_parquet_is_malformed() -> None:
    body = as_parquet({"latency_ms": [1.0] * 1000})
    with pytest.raises(Malformed):
        read(body[:-20], "application/x-parquet")
    with pytest.raises(Malformed):
        read(body[:4] + b"\xff" * 400 + body[404:], "application/x-parquet", max_rows=2000)


@pytest.mark.parametrize(
    ("column", "values"), [("latency_ms", ["1"]), ("gpu", [1]), ("flops", [[1.0]]), ("runs", [True])]
)
def test_parquet_columns_of_the_wrong_type_are_named(column: str, values: list[Any]) -> None:
    with pytest.raises(BadInput) as caught:
        read(as_parquet({column: values}), "application/x-parquet")
    assert caught.value.errors[0].loc == (column,)


def test_an_invalid_grid_in_parquet_names_its_row() -> None:
    with pytest.raises(BadInput) as caught:
        read(as_parquet({"kernel.grid": ["4x4", "four"]}), "application/x-parquet")
    assert caught.value.errors[0].loc == (1, "kernel.grid")


@pytest.mark.parametrize("body", [b"{}", b"[]", b"[1]", b"3"])
def test_json_that_is_not_a_list_of_measurements(body: bytes) -> None:
    with pytest.raises(BadInput):
        read(body, "application/json")


def test_too_many_rows() -> None:
    for body, media in (
        (b"gpu\na\nb\nc\n", "text/csv"),
        (b"[{}, {}, {}]", "application/json"),
        (as_parquet({"gpu": ["a", "b", "c"]}), "application/x-parquet"),
    ):
        with pytest.raises(TooLarge, match="At most 2 rows"):
            read(body, media, max_rows=2)


@pytest.mark.parametrize("media", ["application/x-parquet", "text/csv"])
def test_rows_that_become_objects_are_limited_as_in_json(media: str) -> None:
    columns = {"gpu": ["a"] * (MAX_OBJECTS + 1), "n": [1] * (MAX_OBJECTS + 1)}
    rows = as_parquet(columns) if media != "text/csv" else b"gpu,n\n" + b"a,1\n" * (MAX_OBJECTS + 1)
    with pytest.raises(TooLarge, match=r"(?i)At most 200,?000 rows.* in (several|another) request"):
        read(rows, media, max_rows=2 * MAX_OBJECTS)
    operators = as_parquet(columns | {"op": ["linear"] * (MAX_OBJECTS + 1)})
    (part,) = read_measurements(operators, "application/x-parquet", max_rows=2 * MAX_OBJECTS).parts
    assert len(part) == MAX_OBJECTS + 1


def test_other_media_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedMedia, match="text/csv"):
        read(b"", "application/xml")


@pytest.mark.parametrize("header", [b"op" + b",m" * 300_000, b"name" + b",n" * 300_000, b"op" + b",z" * 300_000])
def test_an_endless_header_is_rejected_at_once(header: bytes) -> None:
    def read_it() -> None:
        with pytest.raises(BadInput) as caught:
            read_measurements(header + b"\n", "text/csv", max_rows=10)
        assert len(caught.value.errors) <= 1000

    assert cpu_s(read_it) < 10.0
