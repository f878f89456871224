"""Measurements in, and what is known from them."""
