"""`gpucast train` reproduces the shipped small predictors."""

import os
from pathlib import Path

import pytest

from app.bootstrap.train_shipped import sources_of, train_shipped
from app.config import CHECKOUT, SHIPPED_MODELS
from app.engine.shipped import shipped_version

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))


@pytest.mark.parametrize("names", [["li"], ["convmeter", "convmeter_ols"]], ids=["operators", "networks"])
@pytest.mark.timeout(900)
def test_retraining_reproduces_the_shipped_predictors(tmp_path: Path, names: list[str]) -> None:
    ships = [shipped_version(name, SHIPPED_MODELS) for name in names]
    if not all((DATA / source.folder).is_dir() for name in names for source in sources_of(name)):
        pytest.skip("the data sets are not here")
    train_shipped(DATA, tmp_path, names, print)
    for shipped, name in zip(ships, names, strict=True):
        again = shipped_version(name, tmp_path)
        assert again is not None
        assert shipped is not None
        assert again.manifest["training_set_sha256"] == shipped.manifest["training_set_sha256"]
        figures = [
            {(cell["split"], cell["family"], cell["gpu"]): cell["mape"] for cell in one.card["validation"]}
            for one in (again, shipped)
        ]
        assert figures[0].keys() == figures[1].keys()
        assert all(figures[0][cell] == pytest.approx(figures[1][cell], rel=0.01, abs=0.05) for cell in figures[0])
