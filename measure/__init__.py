"""Measurement client: suites of points, a runner, and a Parquet file.

Only this package and `gpucast trace` import PyTorch. The service does not import this package, and the command imports
it when called.
"""
