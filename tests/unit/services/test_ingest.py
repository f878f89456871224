"""Rows that `check` accepts; storing is tested over HTTP in tests/api/test_measurements.py."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import MAX_ERRORS, BadInput, FieldError
from app.formats.own import read_measurements
from app.services.measurements import check_operators
from app.services.measurements.check_upload import Checked, check, raise_errors
from app.services.measurements.store_uploads import ingest
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.wire.measurement_form import Objects, Upload
from app.wire.measurement_rows import MAX_REPORTED
from tests.kernels_data import SAXPY

# 10 SMs x 64 lanes x 2 x 1 GHz = 1.28 TFLOP/s; 100 GB/s; caches far smaller than the kernel's 120 MB.
SMALL = {
    "id": "small",
    "name": "Small GPU",
    "architecture": "Turing",
    "sm_count": 10,
    "fp32_lanes_per_sm": 64,
    "boost_clock_hz": 1e9,
    "memory_bytes": 8e9,
    "memory_bandwidth_bytes_per_s": 1e11,
    "l2_bytes": 1e6,
    "aliases": ["Small Driver Name"],
}
# (120 MB - 1 MB that may stay in the L2) / 100 GB/s
LIMIT_MS = 1.19
ROW: dict[str, Any] = {"gpu": "small", "software": "cuda", "source": "bench", "latency_ms": 1.5, "workload": SAXPY}


def checked(*rows: dict[str, Any]) -> Checked:
    return check(Catalog([complete(SMALL)]), Objects.of(rows))


def refused(row: dict[str, Any]) -> tuple[tuple[Any, ...], str]:
    upload = checked(row)
    assert not upload.rows
    return upload.errors[0].loc, upload.errors[0].msg


def with_workload(**changes: Any) -> dict[str, Any]:
    return ROW | {"workload": SAXPY | changes}


def test_a_valid_row_in_si_units() -> None:
    upload = checked(ROW | {"gpu": "small driver-name", "latency_std_ms": 0.1, "kernel": {"grid": [40_000, 1, 1]}})
    row = upload.rows[0]
    assert (row.gpu_id, row.kind, row.name) == ("small", "kernel", "saxpy")
    assert (row.latency_s, row.latency_std_s) == (1.5e-3, 1e-4)
    assert row.workload == SAXPY
    assert row.kernel == {"grid": [40_000, 1, 1]}


def test_sizes_of_zero_count_as_absent() -> None:
    zeros = with_workload(size={"n": 1e7, "rows": 0, "cols": 0, "iterations": 0})
    assert checked(zeros).rows == checked(ROW).rows


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"latency_ms": 0}, "latency_ms"),
        ({"latency_ms": -1.0}, "latency_ms"),
        ({"latency_ms": float("nan")}, "latency_ms"),
        ({"latency_ms": float("inf")}, "latency_ms"),
        ({"latency_ms": "1.5"}, "latency_ms"),
        ({"source": ""}, "source"),
        ({"source": "a\x00b"}, "source"),
        ({"speed": 1}, "speed"),
        ({"runs": 0}, "runs"),
        ({"measured_at": "2026-01-01T00:00:00"}, "measured_at"),
        ({"measured_at": "0001-01-01T00:00:00+14:00"}, "measured_at"),
        ({"measured_at": "9999-12-31T23:59:59-12:00"}, "measured_at"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], loc: str) -> None:
    assert refused(ROW | change)[0] == (0, loc)


def test_every_wrong_field_of_a_row_is_named() -> None:
    upload = checked(ROW, ROW | {"latency_ms": -1, "speed": 2, "runs": 0})
    assert {error.loc for error in upload.errors} == {(1, "latency_ms"), (1, "speed"), (1, "runs")}


def test_missing_fields_and_wrong_workloads() -> None:
    assert refused({name: value for name, value in ROW.items() if name != "source"})[0] == (0, "source")
    assert refused(with_workload(flops=-1))[0] == (0, "workload", "flops")
    assert refused(with_workload(measured=[{"gpu": "small", "latency_ms": 1}]))[0] == (0, "workload", "measured")
    loc, message = refused(ROW | {"workload": {"kind": "graph"}})
    assert loc == (0, "workload", "kind")
    assert "stored are: kernel" in message


def test_unknown_gpus_list_close_names() -> None:
    loc, message = refused(ROW | {"gpu": "smal"})
    assert loc == (0, "gpu")
    assert "small" in message


def test_only_the_first_unknown_gpus_of_many_list_close_names() -> None:
    upload = checked(*(ROW | {"gpu": f"smal{k}"} for k in range(2 * MAX_ERRORS)))
    assert ["Did you mean: small" in error.msg for error in upload.errors] == [True] * MAX_ERRORS + [False] * MAX_ERRORS


def test_a_time_below_the_hardware_limit_is_rejected_with_the_limit() -> None:
    loc, message = refused(ROW | {"latency_ms": LIMIT_MS * 0.949})
    assert loc == (0, "latency_ms")
    assert "1.19 ms (memory)" in message
    assert len(checked(ROW | {"latency_ms": LIMIT_MS * 0.951}).rows) == 1


def test_launches_that_cannot_run_are_rejected() -> None:
    loc, message = refused(with_workload(threads_per_block=1024, registers_per_thread=206))
    assert loc == (0, "workload", "registers_per_thread")
    assert "cannot have run" in message
    assert refused(with_workload(threads_per_block=2048))[0] == (0, "workload", "threads_per_block")


def test_a_measurement_shows_that_a_dtype_runs() -> None:
    assert len(checked(with_workload(dtype="fp8")).rows) == 1


def test_inline_specifications() -> None:
    other = SMALL | {"id": "other", "name": "Other GPU", "aliases": []}
    upload = checked(ROW | {"gpu": other}, ROW | {"gpu": SMALL})
    assert [row.gpu_id for row in upload.rows] == ["other", "small"]
    assert [spec.id for spec in upload.newcomers] == ["other"]
    loc, message = refused(ROW | {"gpu": SMALL | {"sm_count": 12}})
    assert loc == (0, "gpu")
    assert "another GPU" in message
    assert refused(ROW | {"gpu": other | {"sm_count": -1}})[0] == (0, "gpu", "sm_count")


def test_long_error_lists_are_truncated() -> None:
    upload = checked(*[ROW | {"latency_ms": -1}] * (MAX_REPORTED + 5))
    assert len(upload.errors) == MAX_REPORTED + 5
    with pytest.raises(BadInput, match="1005 of 1005 measurements") as caught:
        raise_errors(upload, len(upload.errors))
    assert len(caught.value.errors) == MAX_REPORTED


def living(kind: type) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())  # a proxy of what is gone has a type too


def test_a_refusal_keeps_only_the_errors_that_it_lists() -> None:
    """Others would be freed with it on the event loop, which stops every request for 0.1 s."""
    engine: Any = SimpleNamespace(catalog=Catalog([complete(SMALL)]))
    database: Any = None
    before = living(FieldError)
    with pytest.raises(BadInput, match="3000 of 3000 measurements") as caught:
        ingest(database, engine, Upload((Objects.of([{}] * 3000),)))
    assert len(caught.value.errors) == MAX_REPORTED
    assert living(FieldError) <= before + MAX_REPORTED


def test_a_list_of_other_things_is_refused_with_nothing_left_to_free() -> None:
    before = living(FieldError)
    with pytest.raises(BadInput, match="3000 cells are wrong") as caught:
        read_measurements(b"[" + b"0," * 2999 + b"0]", None, max_rows=3000)
    assert len(caught.value.errors) == MAX_REPORTED
    assert living(FieldError) <= before + MAX_REPORTED


def test_an_upload_can_be_emptied() -> None:
    upload = Upload((Objects.of([ROW] * 3),))
    upload.release()
    assert len(upload) == 0


def test_an_upload_of_more_contexts_than_every_process_may_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = {"kind": "operator", "op": "softmax", "b": 8, "h": 64, "dtype": "fp32"}
    rows = [ROW | {"workload": operator, "source": f"source {k}"} for k in range(3)]
    assert len(checked(*rows)) == 3
    monkeypatch.setattr(check_operators, "MOST_CONTEXTS", 2)
    with pytest.raises(BadInput, match="over 2 combinations of operator, number format, GPU, software, source"):
        checked(*rows)
