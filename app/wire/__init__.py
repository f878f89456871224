"""Bytes to typed requests and answers to bytes: JSON, CSV, Arrow, Parquet. No rule of any use case."""
