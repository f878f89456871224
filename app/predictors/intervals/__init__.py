"""Prediction intervals: conformal quantiles per group of evidence, and the widths of whole networks."""
