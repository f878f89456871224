"""Latency tables: more rows than one request takes, of operators or of whole models, into a folder of Parquet files."""

# Rows per file; the command line reads it before it loads anything else of a sweep.
CHUNK_ROWS = 1 << 18
