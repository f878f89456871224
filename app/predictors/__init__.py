"""Table x table -> predictions: pure, vectorised, one method per file, registered in PREDICTORS."""

from app.predictors.auto import Auto
from app.predictors.efficiency import Efficiency
from app.predictors.regressors import REGRESSORS, PairRegressor
from app.predictors.roofline import Roofline

PREDICTORS: tuple[type[Auto] | type[Roofline] | type[Efficiency] | type[PairRegressor], ...] = (
    Auto,
    Roofline,
    Efficiency,
    *REGRESSORS,
)
# Those that answer for deep-learning operators too; the others know kernels only.
OPERATOR_PREDICTORS = (Auto, Roofline)

__all__ = ["OPERATOR_PREDICTORS", "PREDICTORS", "REGRESSORS"]
