"""PM2Lat's tables: the facts, and what stands beside them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from app.config import SEED_DATA
from app.errors import NotFound
from app.evaluation.operator_files import NEUSIGHT_FILE
from app.evaluation.pm2lat import GPUS, LAYERS, NOT_MEASURED, evaluate_pm2lat, lines
from tests.accuracy.test_operators import DATA

FACTS = json.loads((SEED_DATA / "papers" / "pm2lat.json").read_text("utf-8"))["cells"]


def fact(**of: str) -> dict[str, object]:
    (found,) = [cell for cell in FACTS if of.items() <= cell.items()]
    return found


def test_the_tables_as_printed() -> None:
    # Table II: five layers, two dtypes, five GPUs, of which T4 has no BF16. Table VI: four kernels, three gaps.
    assert len(FACTS) == 5 * 5 + 5 * 4 + 4 * 5 - 3
    assert fact(table="II", dtype="fp32", layer="bmm", gpu="T4")["pm2lat"] == 18.1
    assert fact(table="II", dtype="bf16", layer="linear", gpu="A100")["neusight"] == 70.5
    assert fact(table="VI", layer="triton matmul", gpu="5070")["pm2lat_true_configuration"] == 4.3
    assert fact(table="VI", layer="cutlass attention", gpu="T4")["pm2lat"] == 7.9
    assert {(cell["table"], cell["layer"]) for cell in FACTS} >= set(LAYERS)
    assert {cell["gpu"] for cell in FACTS} >= set(GPUS)


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="Pass --data"):
        evaluate_pm2lat(tmp_path)


@pytest.mark.skipif(not (DATA / NEUSIGHT_FILE).is_file(), reason=f"no data in {DATA}")
def test_what_is_measured_is_answered_and_the_rest_says_so(tmp_path: Path) -> None:
    rows = pq.read_table(DATA / NEUSIGHT_FILE)
    mine = pc.and_(pc.equal(rows["gpu"], "Tesla T4"), pc.is_in(rows["op"], pa.array(["softmax", "bmm"])))
    rows = rows.filter(mine)
    assert rows.num_rows > 1000
    (tmp_path / "neusight").mkdir()
    pq.write_table(rows.take(np.arange(0, rows.num_rows, 8)), tmp_path / NEUSIGHT_FILE)
    cells = evaluate_pm2lat(tmp_path)
    measured = {(cell["layer"], cell["gpu"]): cell for cell in cells if cell["n"]}
    assert set(measured) == {("softmax", "T4"), ("bmm", "T4")}
    assert measured["softmax", "T4"]["pm2lat"] == 20.2
    assert measured["softmax", "T4"]["on"] == "tesla-t4"
    assert measured["softmax", "T4"]["kernel_table"] < 20
    table = lines(cells)
    assert len(table) == len(FACTS) + 1
    assert sum(NOT_MEASURED in line for line in table) == len(FACTS) - 2
