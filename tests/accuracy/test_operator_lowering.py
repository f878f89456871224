"""FLOPs of a transformer in NeuSight's own lowering, forward and backward, against ours and the closed form."""

import os
from ast import literal_eval
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.ops import OP_CODE, OPS
from tests.unit.operators import operators

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
GRAPHS = DATA / "neusight" / "operator_graphs.parquet"
# GPT-2 large: width, vocabulary; the file's training graph holds one of its layers, and the head.
WIDTH, WORDS = 1280, 50257
BATCH, SEQUENCE = 4, 1024

pytestmark = pytest.mark.skipif(not GRAPHS.is_file(), reason=f"no data in {DATA}")


def products(column: str) -> list[tuple[str, tuple[int, ...]]]:
    """Matrix products of the lowering, with its sizes: rows, summed over, columns."""
    rows = pq.read_table(GRAPHS, columns=["model", "mode", "batch", "option", column]).to_pylist()
    wanted = {"model": "gpt2_large", "mode": "train", "batch": BATCH}
    cells = [row[column] for row in rows if wanted.items() <= row.items() and not row["option"]]
    return [(name, sizes) for cell in cells for name, sizes in literal_eval(cell) if name in {"Linear", "BMM"}]


def flops(ops: list[tuple[str, tuple[int, ...]]], *, backward: int = 0) -> float:
    linear = [{"m": m, "k": k, "n": n, "backward": backward} for name, (m, k, n) in ops_of(ops, "Linear")]
    bmm = [{"b": b, "m": m, "k": k, "n": n, "backward": backward} for name, (b, m, k, n) in ops_of(ops, "BMM")]
    tables = operators("linear", *linear), operators("bmm", *bmm)
    return float(
        sum(OPS[OP_CODE[name]].work(table).flops.sum() for name, table in zip(("linear", "bmm"), tables, strict=True))
    )


def ops_of(ops: list[tuple[str, tuple[int, ...]]], kind: str) -> list[tuple[str, tuple[int, ...]]]:
    return [op for op in ops if op[0] == kind]


def test_gpt2_large_forward_and_backward() -> None:
    forward, tokens = products("forward_ops"), BATCH * SEQUENCE
    # 12 width^2 weights of a layer, and scores and values over the whole square; then the vocabulary
    closed = 2 * tokens * (12 * WIDTH**2 + WIDTH * WORDS) + 4 * tokens * SEQUENCE * WIDTH
    assert flops(forward) == closed
    # NeuSight lists both products of each gradient; ours are one row with `backward`
    assert flops(products("backward_ops")) == flops(forward, backward=1) == 2 * closed
