"""Table x table -> predictions: pure, vectorised, one method per file, registered in ALL.

What each can do it declares itself (app.predictors.base.Capabilities).
"""

from app.predictors.auto.predictor import Auto
from app.predictors.base import Capabilities, Predictor
from app.predictors.papers.convmeter import ConvMeter, PlainConvMeter
from app.predictors.papers.cross_gpu_kernels import REGRESSORS, Efficiency
from app.predictors.papers.habitat import Habitat
from app.predictors.papers.li import Li
from app.predictors.papers.neusight.predictor import TileWave
from app.predictors.papers.pm2lat.predictor import KernelTable
from app.predictors.roofline import Roofline

ALL: tuple[type[Predictor], ...] = (
    Auto,
    Roofline,
    Efficiency,
    *REGRESSORS,
    Li,
    Habitat,
    TileWave,
    KernelTable,
    ConvMeter,
    PlainConvMeter,
)
# The one that answers where none is named.
DEFAULT = Auto.name
# Those of launches; and of deep-learning operators, or of networks as such.
PREDICTORS = tuple(predictor for predictor in ALL if "launches" in predictor.can.predicts)
OPERATOR_PREDICTORS = tuple(predictor for predictor in ALL if {*predictor.can.predicts} & {"operators", "networks"})
BY_NAME: dict[str, type[Predictor]] = {predictor.name: predictor for predictor in ALL}


def capabilities(name: str) -> Capabilities:
    """What a predictor can do."""
    return BY_NAME[name].can


__all__ = ["ALL", "BY_NAME", "DEFAULT", "OPERATOR_PREDICTORS", "PREDICTORS", "REGRESSORS", "capabilities"]
