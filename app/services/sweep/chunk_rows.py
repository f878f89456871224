"""Rows per file of a sweep."""

CHUNK_ROWS = 1 << 18
