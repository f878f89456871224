"""Metadata keys of Parquet files with measurements."""

from __future__ import annotations

# Specification of the measured device in JSON, as POST /gpus takes it.
DEVICE = b"gpucast.device"
