"""Measurements as bodies and files hold them: JSON, CSV and Parquet."""
