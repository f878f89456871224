"""Measuring on the machine that has the device: suites of points, one runner, one Parquet file.

The client side of gpucast, the only place beside `gpucast trace` that imports PyTorch: nothing of the service imports
this package, and the command imports it when it is called.
"""
