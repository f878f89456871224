"""What the service costs, measured: `python -m benchmarks.<name>`."""
