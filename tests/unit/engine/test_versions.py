from pathlib import Path

import numpy as np
import pytest

from app.config import SHIPPED_MODELS
from app.engine.catalogue import load_seed_specs
from app.engine.engine import Served
from app.engine.shipped import Shipped, shipped_versions, write_list
from app.engine.trial import operator_rows
from app.engine.versions import built, cached
from app.predictors import BY_NAME
from app.runtime.cache_base import writable_base
from app.store.artifacts import files_of
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.wire.kernel_tables import NO_MEASUREMENTS

NAMES = sorted(shipped_versions(SHIPPED_MODELS))


def refused() -> Served:
    raise AssertionError("it is built although it is cached")


def files(predictor: str) -> list[Path]:
    return list(writable_base().glob(f"version-{predictor}-*"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_version_is_built_once(name: str) -> None:
    ships = shipped_versions(SHIPPED_MODELS)[name]
    cached(ships, lambda: built(ships))
    assert len(files(name)) == 1
    assert cached(ships, refused).version == ships.version


def test_a_version_from_its_file_answers_as_its_artefact() -> None:
    ships = shipped_versions(SHIPPED_MODELS)["auto"]
    whole = built(ships)
    cached(ships, lambda: whole)
    kept = cached(ships, refused)
    gpus, ops = GpuTable.from_specs(load_seed_specs()), operator_rows(whole.cells)
    i, j = (part.ravel() for part in np.indices((len(ops), len(gpus.ids))))
    first, second = (
        served.predictor.predict(ops, gpus, i, j, evidence=Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp)))
        for served in (whole, kept)
    )
    np.testing.assert_array_equal(first.latency_s, second.latency_s)
    np.testing.assert_array_equal(first.group, second.group)
    np.testing.assert_array_equal(whole.log_offsets(0.8), kept.log_offsets(0.8))


def test_a_damaged_file_is_written_again() -> None:
    ships = shipped_versions(SHIPPED_MODELS)["li"]
    cached(ships, lambda: built(ships))
    (file,) = files("li")
    content = file.read_bytes()
    file.unlink()  # other processes have it mapped
    file.write_bytes(content[:1000])
    assert isinstance(cached(ships, lambda: built(ships)).predictor, BY_NAME["li"])
    cached(ships, refused)


def test_artefacts_of_other_folders_are_read_each_time(tmp_path: Path) -> None:
    """Only files of the artefacts beside the code are kept."""
    ships = shipped_versions(SHIPPED_MODELS)["li"]
    for file in files_of(SHIPPED_MODELS, ships.sha256):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_list(tmp_path, {"li": ships.sha256})
    other: Shipped = shipped_versions(tmp_path)["li"]
    with pytest.raises(AssertionError, match="it is built"):
        cached(other, refused)
