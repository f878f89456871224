"""Use cases: the only place that joins stores, training and predictors."""
