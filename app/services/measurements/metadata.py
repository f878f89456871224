"""What the metadata of a Parquet file of measurements says, for readers here and writers elsewhere."""

from __future__ import annotations

# Key of the measuring device's specification in JSON, as POST /gpus takes it.
DEVICE = b"gpucast.device"
