"""Benchmarks of the service's costs: `python -m benchmarks.<name>`."""
