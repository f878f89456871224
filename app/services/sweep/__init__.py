"""Latency tables: more rows than one request takes, of operators or of whole models, into a folder of Parquet files."""
