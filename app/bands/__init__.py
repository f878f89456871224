"""Intervals: their widths, how these combine, and conformal quantiles per group of evidence."""
