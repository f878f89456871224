"""Whole networks: asked for, lowered, timed and answered."""
