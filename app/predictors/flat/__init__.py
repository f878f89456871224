"""Fitted scikit-learn estimators as flat arrays, for fast prediction."""
