"""Whole networks as requests describe them."""
