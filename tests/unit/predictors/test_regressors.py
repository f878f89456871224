"""The seven regressors: pairs and features by hand, answers equal to scikit-learn's."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Lasso, LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVR

from app.bands.groups import NO_EVIDENCE, OTHER_GPU, RELATED
from app.errors import NotTrained
from app.predictors.flat import Affine
from app.predictors.papers.cross_gpu_kernels import (
    MAX_PAIRS,
    REGRESSORS,
    PairRegressor,
    gpu_features,
    one_row_per_gpu,
    ordered_pairs,
    pair_features,
)
from app.predictors.papers.cross_gpu_kernels_fit import FITTERS
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from tests.unit.kernels import TURING, VOLTA, evidence, index, kernels, measured_gpu

LINEAR = next(regressor for regressor in REGRESSORS if regressor.name == "linear")
GPUS = GpuTable.from_specs([TURING, measured_gpu(VOLTA, compute=14e12, bandwidth=800e9)])
LAUNCH = {
    "flops": 2e9,
    "bytes": 1e9,
    "threads_per_block": 256,
    "registers_per_thread": 32,
    "shared_memory_per_block": 4096,
    "rows": 512,
    "cols": 256,
}
SKLEARN: dict[str, Any] = {
    "forest": RandomForestRegressor(n_estimators=200, random_state=0),
    "linear": LinearRegression(),
    "ridge": Ridge(alpha=1.0),
    "lasso": Lasso(alpha=0.001),
    "svr": SVR(C=10, epsilon=0.001),
    "boosting": GradientBoostingRegressor(random_state=0),
    "knn": KNeighborsRegressor(n_neighbors=5, algorithm="kd_tree"),
}


def measurements(sizes: int = 12) -> Measurements:
    """One kernel at several sizes on both GPUs, the second 1.5 times as fast."""
    rows = [{**LAUNCH, "bytes": 1e6 * 2.0**k, "flops": 2e6 * 2.0**k} for k in range(sizes)]
    seconds = np.array([1e-5 + row["bytes"] / 500e9 for row in rows])
    return Measurements(
        kernels(rows + rows), np.repeat([0, 1], sizes).astype(np.intp), np.concatenate([seconds, seconds / 1.5])
    )


def test_features_of_a_pair_by_hand() -> None:
    features = pair_features(
        kernels([LAUNCH]), np.array([2.5e-3]), gpu_features(GPUS, index(0)), gpu_features(GPUS, index(1))
    )
    assert features[0, :11].tolist() == [2e9, 1e9, 2.0, 32, 4096, 256, 0, 512, 256, 0, 2.5]
    # Source and target in turn: peak and sustained GFLOP/s, peak and sustained GB/s, SMs, ...; the source has
    # no sustained figures, so its peaks stand in.
    assert features[0, 11:21].tolist() == [12000, 15000, 12000, 14000, 600, 900, 600, 800, 68, 68]
    assert features[0, 21:].tolist() == [1024, 2048, 16, 32, 65536, 65536, 65536, 98304, 32, 32]


def test_one_row_per_launch_and_gpu_with_the_median_time() -> None:
    other = {**LAUNCH, "bytes": 2e9}
    ops = kernels([LAUNCH, LAUNCH, LAUNCH, LAUNCH, other, LAUNCH], label=[1, 1, 1, 1, 1, 2])
    rows, launch = one_row_per_gpu(Measurements(ops, index(0, 1, 0, 0, 1, 1), np.array([5.0, 1.0, 2.0, 3.0, 7.0, 9.0])))
    found = sorted(zip(rows.ops.label, rows.ops.column("bytes"), rows.gpu, rows.latency_s, strict=True))
    assert found == [(1, 1e9, 0, 3.0), (1, 1e9, 1, 1.0), (1, 2e9, 1, 7.0), (2, 1e9, 1, 9.0)]
    source, target = ordered_pairs(launch)
    assert sorted(zip(rows.latency_s[source], rows.latency_s[target], strict=True)) == [(1.0, 3.0), (3.0, 1.0)]


def test_ordered_pairs_of_three_and_two() -> None:
    source, target = ordered_pairs(index(7, 3, 7, 3, 7))
    assert sorted(zip(source.tolist(), target.tolist(), strict=True)) == [
        (0, 2), (0, 4), (1, 3), (2, 0), (2, 4), (3, 1), (4, 0), (4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("name", FITTERS)
def test_flat_answers_equal_scikit_learns(name: str) -> None:
    rng = np.random.default_rng(0)
    train, test = rng.lognormal(sigma=2, size=(2, 120, 7))
    target = train[:, 0] + np.sqrt(train[:, 1] * train[:, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = SKLEARN[name].fit(train, target).predict(test)
    assert FITTERS[name](train, target).predict(test) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("regressor", REGRESSORS, ids=lambda regressor: regressor.name)
def test_fit_serve_and_reload(regressor: type[PairRegressor]) -> None:
    rows = measurements()
    fitted = regressor().fit(rows, GPUS)
    n = len(rows) // 2
    queries, target = np.arange(n), np.ones(n, dtype=np.intp)
    given = evidence(rows.ops.take(queries), [0] * n, rows.latency_s[:n].tolist(), range(n))
    found = fitted.predict(rows.ops, GPUS, queries, target, evidence=given)
    again = regressor.from_state(fitted.state()).predict(rows.ops, GPUS, queries, target, evidence=given)
    assert np.array_equal(found.latency_s, again.latency_s, equal_nan=True)
    assert (found.group == OTHER_GPU).all()
    # Trained on these very pairs: the largest, which dominates every loss, comes back within a quarter.
    assert found.latency_s[-1] == pytest.approx(rows.latency_s[-1], rel=0.25 if regressor.name != "knn" else 1.0)


def test_negative_times_are_unsupported_and_related_kernels_supported() -> None:
    regressor = LINEAR()
    regressor.model_ = Affine(np.eye(31)[10] * 2.0, -10.0)  # 2 x source ms - 10
    ops = kernels([LAUNCH] * 4, label=[0, 0, 1, 2])
    given = evidence(kernels([LAUNCH] * 4), [0] * 4, [3e-3, 9e-3, 21e-3, 9e-3], [0, 1, 1, 2])
    found = regressor.predict(ops, GPUS, np.arange(4), np.ones(4, dtype=np.intp), evidence=given)
    # 6 - 10 ms is no time; 8 and 32 ms have the geometric mean 16; a related kernel counts; none is none.
    assert found.latency_s == pytest.approx([np.nan, 16e-3, 8e-3, np.nan], nan_ok=True)
    assert found.group.tolist() == [OTHER_GPU, OTHER_GPU, RELATED, NO_EVIDENCE]


def test_one_gpu_raises_not_trained() -> None:
    rows = measurements()
    with pytest.raises(NotTrained, match="two or more GPUs"):
        LINEAR().fit(rows.take(np.flatnonzero(rows.gpu == 0)), GPUS)


def test_sampling_of_pairs_is_deterministic() -> None:
    rng = np.random.default_rng(1)
    sizes = MAX_PAIRS  # twice as many ordered pairs
    table = kernels([{**LAUNCH, "bytes": float(k + 1)} for k in range(sizes)] * 2)
    rows = Measurements(table, np.repeat([0, 1], sizes).astype(np.intp), rng.uniform(1e-3, 2e-3, 2 * sizes))
    models = [LINEAR().fit(rows, GPUS).state()["model"] for _ in range(2)]
    assert models[0]["coefficients"].tolist() == models[1]["coefficients"].tolist()


def test_serving_imports_no_scikit_learn() -> None:
    code = "import sys, app.predictors.papers.cross_gpu_kernels; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
