"""Import of a folder into a real database: rows, measured figures, and omitted rows."""

import os
from pathlib import Path

import pytest

from app.config import Settings
from app.errors import BadInput, NotFound
from app.services.measurements.importing import find_importer, import_folder
from app.store import gpus, measurements
from app.store.measurements import MeasurementRow
from app.store.session import Database
from tests.forked import run_command
from tests.unit.formats.test_cuda_kernels import HOT, SAXPY, folder

# 3 MB in a tenth of a microsecond: no TITAN V can.
IMPOSSIBLE = SAXPY.replace("0.0041", "0.0001")
NEVER_RAN = HOT.replace("spin,7,0,256", "spin,206,0,1024")


def stored(database: Database) -> list[MeasurementRow]:
    with database.begin() as connection:
        return measurements.load(connection, kind="kernel")


def test_a_folder_is_imported_once_and_omitted_rows_are_reported(database: Database, tmp_path: Path) -> None:
    importer = find_importer("cuda-kernels")
    data = folder(tmp_path, SAXPY, IMPOSSIBLE, HOT, NEVER_RAN)
    tried = import_folder(database, importer, data, dry_run=True)
    assert (tried.received, tried.inserted, len(tried.skipped)) == (4, 2, 2)
    assert stored(database) == []
    with database.begin() as connection:
        assert gpus.get_spec(connection, "titan-v").sustained_compute_flops is None

    report = import_folder(database, importer, data)
    assert (report.inserted, report.unchanged, list(report.gpus)) == (2, 0, ["titan-v"])
    reasons = {skip.where: skip.reason for skip in report.skipped}
    assert "hardware limit" in reasons["runs_titanv_final.csv:3"]
    assert "cannot have run" in reasons["runs_titanv_final.csv:5"]
    assert {row.name for row in stored(database)} == {"saxpy", "spin"}
    with database.begin() as connection:
        spec = gpus.get_spec(connection, "titan-v")
    assert spec.triad_bandwidth_bytes_per_s == pytest.approx(609.9e9)
    assert spec.provenance["sustained_bandwidth_bytes_per_s"] == "measured"

    again = import_folder(database, importer, data)
    assert (again.inserted, again.unchanged, again.gpus) == (0, 2, {})


def test_unknown_gpus_are_omitted_and_named(database: Database, tmp_path: Path) -> None:
    data = folder(tmp_path, SAXPY, SAXPY.replace("NVIDIA TITAN V", "NVIDIA TITAN W"))
    report = import_folder(database, find_importer("cuda-kernels"), data, dry_run=True)
    assert any("TITAN W" in skip.reason for skip in report.skipped)
    assert any(skip.where == "NVIDIA TITAN W" for skip in report.skipped)


def test_a_folder_without_a_valid_row_is_an_error(database: Database, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="None of the 1 rows"):
        import_folder(database, find_importer("cuda-kernels"), folder(tmp_path, IMPOSSIBLE))


def test_unknown_formats_list_the_known_ones() -> None:
    with pytest.raises(NotFound, match="cuda-kernels"):
        find_importer("excel")


def test_the_command_prints_and_writes_its_results(settings: Settings, tmp_path: Path) -> None:
    data = folder(tmp_path, SAXPY, IMPOSSIBLE)
    done = run_command("import", "cuda-kernels", data, "--dry-run", env=os.environ | settings.environment())
    assert "skipped runs_titanv_final.csv:3" in done.stdout
    assert "2 rows: " in done.stdout
