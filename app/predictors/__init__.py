"""Table x table -> predictions: pure, vectorised, one method per file, registered in PREDICTORS."""

from app.predictors.auto.predictor import Auto
from app.predictors.base import Predictor
from app.predictors.papers.convmeter.predictor import ConvMeter, PlainConvMeter
from app.predictors.papers.cross_gpu_kernels.efficiency import Efficiency
from app.predictors.papers.cross_gpu_kernels.regressors import REGRESSORS, PairRegressor
from app.predictors.papers.habitat.predictor import Habitat
from app.predictors.papers.li import Li
from app.predictors.papers.neusight.predictor import TileWave
from app.predictors.papers.pm2lat.predictor import KernelTable
from app.predictors.roofline import Roofline

PREDICTORS: tuple[type[Auto] | type[Roofline] | type[Efficiency] | type[PairRegressor], ...] = (
    Auto,
    Roofline,
    Efficiency,
    *REGRESSORS,
)
# Those that answer for deep-learning operators too; the others know kernels only.
OPERATOR_PREDICTORS: tuple[type[Predictor], ...] = (
    Auto,
    Roofline,
    Li,
    Habitat,
    TileWave,
    KernelTable,
    ConvMeter,
    PlainConvMeter,
)
# All of them by name: of kernels, of operators, of both.
BY_NAME: dict[str, type[Predictor]] = {cls.name: cls for cls in (*PREDICTORS, *OPERATOR_PREDICTORS)}


def learns_kernels(name: str) -> bool:
    """Whether this predictor learns from kernel measurements."""
    return hasattr(BY_NAME[name], "fit")


def learns_operators(name: str) -> bool:
    """Whether this predictor learns from measurements of deep-learning operators."""
    return hasattr(BY_NAME[name], "fit_operators")


def learns_only(name: str) -> tuple[str, ...] | None:
    """The operators that this predictor learns from; None: whichever there are."""
    only: tuple[str, ...] | None = getattr(BY_NAME[name], "learns_from", None)
    return only


__all__ = [
    "BY_NAME",
    "OPERATOR_PREDICTORS",
    "PREDICTORS",
    "REGRESSORS",
    "learns_kernels",
    "learns_only",
    "learns_operators",
]
