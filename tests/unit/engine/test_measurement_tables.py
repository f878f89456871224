"""Operators written to the store and read back as training tables."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.engine.measurement_tables import stored_operators, to_runs
from app.services.measurements.check_upload import Checked, check
from app.services.measurements.store_uploads import save
from app.store import gpus, measurements, operator_rows, operators, revision
from app.store.session import Database
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS
from app.store.uploads import Filters
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.wire.measurement_form import Objects
from tests.kernels_data import SAXPY
from tests.unit.services.test_ingest import SMALL

SPECS = [complete(SMALL), complete(SMALL | {"id": "other", "name": "Other GPU", "aliases": []})]
GPUS = GpuTable.from_specs(SPECS)


def linear(m: int, latency_ms: float, **row: Any) -> dict[str, Any]:
    workload = {"kind": "operator", "op": "linear", "m": m, "n": 64, "k": 32, "dtype": "fp32"}
    about = {"gpu": "small", "software": "pytorch-2.1", "source": "bench", "latency_ms": latency_ms}
    return about | {"workload": workload | row.pop("workload", {})} | row


ROWS = [
    *(linear(m, 1.0 + m / 1e3) for m in range(1, 200)),
    linear(7, 3.0, gpu="other", software="vllm-0.24"),
    linear(8, 3.5, kernel={"name": "sgemm", "grid": [4, 2], "block": 128}),
    linear(9, 4.0, workload={"phase": "backward", "run_state": "burst"}),
    linear(10, 4.5, workload={"dtype": "fp64"}),
    linear(11, 5.0, workload={"op": "bmm", "b": 3}, measured_at="2026-01-02T03:04:05Z", runs=5, clock_hz=1e9),
]


def checked(*rows: dict[str, Any]) -> Checked:
    return check(Catalog(SPECS), Objects.of(rows))


@pytest.fixture(scope="module", autouse=True)
def catalogued(database: Database) -> None:
    with database.begin() as connection:
        for spec in SPECS:
            gpus.insert_spec(connection, spec, "user")


@pytest.fixture(scope="module")
def stored(database: Database) -> list[OperatorRuns]:
    with database.begin() as connection:
        assert save(connection, checked(*ROWS, *ROWS[:50])) == len(ROWS)
        assert save(connection, checked(*reversed(ROWS))) == 0
    with database.begin() as connection:
        return stored_operators(connection, GPUS)


def test_a_table_per_operator_and_dtype_in_the_order_of_the_keys(stored: list[OperatorRuns]) -> None:
    assert [(runs.op, runs.dtype, len(runs)) for runs in stored] == [
        ("linear", "fp64", 1),
        ("linear", "fp32", 202),
        ("bmm", "fp32", 1),
    ]
    for runs in stored:
        assert (np.diff(runs.key.astype(object)) > 0).all()
        assert runs.rows.ops.dims.flags.c_contiguous


def test_stored_rows_are_read_back_unchanged(stored: list[OperatorRuns]) -> None:
    runs = stored[1]
    ops = runs.rows.ops
    found = {
        (
            GPUS.ids[runs.rows.gpu[k]],
            runs.stacks[runs.software[k]],
            ops.column("m")[k],
            round(runs.rows.latency_s[k] * 1e3, 9),
            ops.column("backward")[k],
            ops.column("burst")[k],
            ops.column("eager")[k],
            runs.kernels[runs.kernel[k]] if runs.kernel[k] >= 0 else None,
        )
        for k in range(len(runs))
    }
    eager = {("small", "pytorch-2.1", float(m), round(1.0 + m / 1e3, 9), 0.0, 0.0, 1.0, None) for m in range(1, 200)}
    assert found == eager | {
        ("other", "vllm-0.24", 7.0, 3.0, 0.0, 0.0, 0.0, None),
        ("small", "pytorch-2.1", 8.0, 3.5, 0.0, 0.0, 1.0, "sgemm"),
        ("small", "pytorch-2.1", 9.0, 4.0, 1.0, 1.0, 1.0, None),
    }
    assert (ops.column("count") == 1).all()
    (launched,) = np.flatnonzero(runs.kernel >= 0)
    assert runs.grid[:, launched].tolist() == [4, 2, 1]
    assert runs.block[:, launched].tolist() == [128, 1, 1]
    assert np.isnan(np.delete(runs.grid, launched, axis=1)).all()


def test_only_requested_operators_are_read(stored: list[OperatorRuns], database: Database) -> None:
    with database.begin() as connection:
        (only,) = stored_operators(connection, GPUS, gpu_ids=["other"])
        assert (len(only), only.rows.gpu.tolist()) == (1, [1])
        assert [runs.op for runs in stored_operators(connection, GPUS, ops=["bmm"])] == ["bmm"]
        assert [len(runs) for runs in stored_operators(connection, GpuTable.from_specs(SPECS[1:]))] == [1]
        again = stored_operators(connection, GPUS)
    assert all((a.key == b.key).all() for a, b in zip(stored, again, strict=True))


def test_counts_and_identity_of_stored_rows(stored: list[OperatorRuns], database: Database) -> None:
    with database.begin() as connection:
        assert measurements.counts(connection)["operator", "small"] == len(ROWS) - 1
        assert operators.counts(connection) == {"other": 1, "small": len(ROWS) - 1}
        changes: list[dict[str, Any]] = [
            {"latency_ms": 1.002},
            {"software": "pytorch-2.2"},
            {"source": "other bench"},
            {"clock_hz": 1e9},
            {"measured_at": "2026-01-01T00:00:00Z"},
            {"kernel": {"name": "sgemm"}},
            {"kernel": {"grid": 4}},
            {"workload": {"phase": "backward"}},
        ]
        for change in changes:
            row = linear(1, 1.001)
            row |= change | {"workload": row["workload"] | change.get("workload", {})}
            assert save(connection, checked(row)) == 1, change
        assert save(connection, checked(linear(1, 1.001, runs=9, power_w=3.0, latency_std_ms=0.1))) == 0


def test_a_measured_dtype_runs_but_not_below_its_memory_time() -> None:
    assert SPECS[0].memory_bandwidth_bytes_per_s == 1e11
    nvfp4 = linear(4096, 50.0, workload={"n": 4096, "k": 4096, "dtype": "nvfp4"})
    found = checked(nvfp4, nvfp4 | {"latency_ms": 0.01})
    assert found.operators is not None
    assert len(found.operators) == 1
    assert [error.loc for error in found.errors] == [(1, "latency_ms")]
    assert sum(found.operators.reasons.values()) == 1


def test_times_slightly_below_the_limit_are_accepted() -> None:
    # 2 x 8192^3 FLOPs at 1.28 TFLOP/s
    limit_ms = 2 * 8192**3 / 1.28e12 * 1e3
    square = {"n": 8192, "k": 8192}
    rows = [linear(8192, limit_ms * part, workload=square) for part in (0.949, 0.951)]
    assert [error.loc for error in checked(*rows).errors] == [(0, "latency_ms")]


def test_rows_added_during_a_deletion_are_kept(database: Database) -> None:
    about = {"source": "passing"}
    with database.begin() as connection:
        assert save(connection, checked(*(linear(m, 2.0, **about) for m in (1, 2)))) == 2

    def upload() -> int:
        kernel = linear(3, 1e3, **about) | {"workload": SAXPY}
        with database.begin() as connection:
            return save(connection, checked(linear(3, 2.0, **about), kernel))

    with ThreadPoolExecutor(1) as pool:
        with database.begin() as connection:
            assert operator_rows.remove(connection, Filters(source="passing")) == {"small": 2}
            coming = pool.submit(upload)
            time.sleep(0.3)
        assert coming.result() == 2
    with database.begin() as connection:
        listed = measurements.remove(connection, Filters(source="passing"))
        assert listed == {("kernel", "small"): 1, ("operator", "small"): 1}
        contexts = sa.select(OPERATOR_CONTEXTS.c.id)
        orphans = sa.select(sa.func.count()).where(OPERATOR_MEASUREMENTS.c.context_id.not_in(contexts))
        assert connection.execute(orphans).scalar_one() == 0


def test_rows_added_since_a_revision_are_read_at_once_as_one_by_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def softmax(rows: int) -> dict[str, Any]:
        workload = {"kind": "operator", "op": "softmax", "b": rows, "h": 64, "dtype": "fp16"}
        return linear(1, 9.0) | {"workload": workload}

    with database.begin() as connection:
        save(connection, check(Catalog(SPECS), Objects.of([linear(901, 9.0), softmax(901)])))
    with database.begin() as connection:
        before = revision.current(connection)
        rows = [linear(902, 9.0), linear(903, 9.5, gpu="other"), softmax(902), softmax(903)]
        assert save(connection, check(Catalog(SPECS), Objects.of(rows))) == 4
    with database.begin() as connection:
        at_once = list(operator_rows.load(connection, since=before))
        monkeypatch.setattr(operator_rows, "FEW", 0)
        one_by_one = list(operator_rows.load(connection, since=before))
    assert sum(len(ids) for _, ids in at_once) == 4
    assert len(at_once) == len(one_by_one) == 2
    for (block, ids), (other, other_ids) in zip(at_once, one_by_one, strict=True):
        order, theirs = np.lexsort(ids.T), np.lexsort(other_ids.T)
        assert block.contexts == other.contexts
        np.testing.assert_array_equal(ids[order], other_ids[theirs])
        for name in ("context", "latency_s", "measured_at"):
            np.testing.assert_array_equal(getattr(block, name)[order], getattr(other, name)[theirs])
        for name in ("dims", "grid", "block"):
            np.testing.assert_array_equal(getattr(block, name)[:, order], getattr(other, name)[:, theirs])


def test_rows_are_read_in_blocks_of_some(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.begin() as connection:
        save(connection, checked(*ROWS))
        before = list(operator_rows.load(connection, ops=["linear"]))
        monkeypatch.setattr(operator_rows, "FEW", 0)
        monkeypatch.setattr(operator_rows, "_BLOCK", 7)
        parts = list(operator_rows.load(connection, ops=["linear"]))
    assert max(len(ids) for _, ids in parts) == 7
    assert len(parts) > len(before)
    for block, _ in parts:
        assert {*range(len(block.contexts))} == {*block.context.tolist()}, "only contexts of its rows"
    together = to_runs(parts, GPUS), to_runs(before, GPUS)
    for some, whole in zip(*together, strict=True):
        assert (some.key == whole.key).all()
        assert (some.rows.latency_s == whole.rows.latency_s).all()
        assert np.array_equal(some.rows.ops.dims, whole.rows.ops.dims, equal_nan=True)
