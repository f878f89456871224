"""gpucast: how long GPU work takes on any GPU, without running it there."""

__version__ = "0.2.0"
