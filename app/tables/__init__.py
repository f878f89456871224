"""Frozen structs of NumPy arrays in SI units. No I/O, no physics."""
