"""Whole networks: resolved, lowered, timed and answered."""
