"""Rows of a table that one file of a sweep answers."""

CHUNK_ROWS = 1 << 18
