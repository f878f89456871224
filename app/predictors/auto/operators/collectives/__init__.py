"""Interpolation and extrapolation of collectives over message sizes and numbers of devices."""
