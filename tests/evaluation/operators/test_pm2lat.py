"""PM2Lat's tables: published errors, and ours beside them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from app.config import SEED_DATA
from app.errors import NotFound
from evaluation.data import NEUSIGHT_FILE
from evaluation.operators.pm2lat import GPUS, LAYERS, NOT_MEASURED, evaluate_pm2lat, report
from evaluation.render import text_lines
from tests.accuracy.test_operators import DATA

PUBLISHED = json.loads((SEED_DATA / "papers" / "pm2lat.json").read_text("utf-8"))["cells"]


def published(**fields: str) -> dict[str, object]:
    (cell,) = [cell for cell in PUBLISHED if fields.items() <= cell.items()]
    return cell


def test_published_errors_are_those_of_the_paper() -> None:
    # Table II: five layers, two dtypes, five GPUs, of which T4 has no BF16. Table VI: four kernels, three gaps.
    assert len(PUBLISHED) == 5 * 5 + 5 * 4 + 4 * 5 - 3
    assert published(table="II", dtype="fp32", layer="bmm", gpu="T4")["pm2lat"] == 18.1
    assert published(table="II", dtype="bf16", layer="linear", gpu="A100")["neusight"] == 70.5
    assert published(table="VI", layer="triton matmul", gpu="5070")["pm2lat_true_configuration"] == 4.3
    assert published(table="VI", layer="cutlass attention", gpu="T4")["pm2lat"] == 7.9
    assert {(cell["table"], cell["layer"]) for cell in PUBLISHED} >= set(LAYERS)
    assert {cell["gpu"] for cell in PUBLISHED} >= set(GPUS)


def test_a_folder_without_data_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="Pass --data"):
        evaluate_pm2lat(tmp_path)


@pytest.mark.skipif(not (DATA / NEUSIGHT_FILE).is_file(), reason=f"no data in {DATA}")
def test_measured_cells_have_errors_and_the_others_say_not_measured(tmp_path: Path) -> None:
    rows = pq.read_table(DATA / NEUSIGHT_FILE)
    selected = pc.and_(pc.equal(rows["gpu"], "Tesla T4"), pc.is_in(rows["op"], pa.array(["softmax", "bmm"])))
    rows = rows.filter(selected)
    assert rows.num_rows > 1000
    (tmp_path / "neusight").mkdir()
    pq.write_table(rows.take(np.arange(0, rows.num_rows, 8)), tmp_path / NEUSIGHT_FILE)
    cells = evaluate_pm2lat(tmp_path)
    measured = {(cell["layer"], cell["gpu"]): cell for cell in cells if cell["n"]}
    assert set(measured) == {("softmax", "T4"), ("bmm", "T4")}
    assert measured["softmax", "T4"]["pm2lat"] == 20.2
    assert measured["softmax", "T4"]["on"] == "tesla-t4"
    assert measured["softmax", "T4"]["kernel_table"] < 20
    table = list(text_lines(report(cells).blocks))
    assert len(table) == 1 + 1 + len(PUBLISHED)
    assert sum(NOT_MEASURED in line for line in table) == len(PUBLISHED) - 2
