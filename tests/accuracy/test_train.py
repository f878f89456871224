"""What ships is what `gpucast train` makes of the data sets: one small predictor, trained again."""

import os
from pathlib import Path

import pytest

from app.config import CHECKOUT, SHIPPED_MODELS
from app.services.shipped import shipped_version
from app.services.train_shipped import SOURCES, train_shipped

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))


@pytest.mark.skipif(
    not all((DATA / source.folder).is_dir() for source in SOURCES) or shipped_version("li", SHIPPED_MODELS) is None,
    reason="the data sets, or what ships, are not here",
)
@pytest.mark.timeout(900)
def test_li_trained_again_has_the_figures_of_the_shipped_one(tmp_path: Path) -> None:
    train_shipped(DATA, tmp_path, ["li"], print)
    again, ships = shipped_version("li", tmp_path), shipped_version("li", SHIPPED_MODELS)
    assert again is not None
    assert ships is not None
    assert again.manifest["training_set_sha256"] == ships.manifest["training_set_sha256"]
    figures = [
        {(cell["split"], cell["family"], cell["gpu"]): cell["mape"] for cell in one.card["validation"]}
        for one in (again, ships)
    ]
    assert figures[0].keys() == figures[1].keys()
    assert all(figures[0][cell] == pytest.approx(figures[1][cell], rel=0.01, abs=0.05) for cell in figures[0])
