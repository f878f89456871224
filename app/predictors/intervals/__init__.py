"""Prediction intervals: conformal quantiles per group of evidence, and how rows add up to a network."""
