"""Values of all features: artefacts hold trees over them, so a feature must not change under its name.

If one of these fails, a feature is computed otherwise: raise REVISION in auto/layout.py, train `auto` again,
and put the new numbers here.
"""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.trial import operator_rows
from app.ops import OP_CODE
from app.predictors.auto.layout import RELATIVE, REVISION, shape_feature_names
from app.predictors.auto.operators.models.features import STACK
from app.predictors.auto.operators.models.training_samples import samples
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from tests.unit.kernels import VOLTA

GPUS = GpuTable.from_specs([VOLTA])
OF_REVISION = 4
# Per operator, every feature times its place, summed: of shapes alone, and relative to a GPU.
NUMBERS = {
    "linear": (628.4117, -2927.665),
    "bmm": (790.6081, -334.5638),
    "conv2d": (1078.697, 35770.52),
    "layer_norm": (142.9066, -1376.608),
    "softmax": (142.9066, -1526.479),
    "max_pool2d": (271.5936, -564.467),
    "add": (110.1122, -1381.74),
    "add_strided": (138.7477, -1302.278),
    "dropout": (110.1122, -1277.232),
    "embedding": (159.5421, -1762.257),
    "recurrent": (93.54213, -684.9685),
    "attention_prefill": (1809.581, 2423.463),
    "attention_decode": (1495.889, 2211.072),
    "attention_mla": (650.1969, 8002.063),
    "attention_module": (259.7167, 4951.357),
    "moe": (1044.21, 54.38831),
    "all_reduce": (51.9533, -2391.589),
    "copy": (105.9533, -1752.062),
}


def numbers(op: str) -> tuple[float, float]:
    """Of a row of a middling size in FP32."""
    here = np.zeros(1, dtype=np.intp)
    features = samples(Measurements(operator_rows([(op, "fp32")]), here, np.array([1e-3])), GPUS).features[:STACK, 0]
    weighted = np.nan_to_num(features.astype(np.float64)) * (1.0 + np.arange(len(features)))
    shape = len(features) - len(RELATIVE)
    return float(weighted[:shape].sum()), float(weighted[shape:].sum())


def test_the_reference_values_are_of_this_revision() -> None:
    assert REVISION == OF_REVISION


@pytest.mark.parametrize("op", NUMBERS)
def test_feature_values_do_not_change(op: str) -> None:
    assert numbers(op) == pytest.approx(NUMBERS[op], rel=1e-5, abs=0.02), shape_feature_names(OP_CODE[op])
