"""The catalogue that the `gpuhunt` package fetches, as its CSV file (extra `gpuhunt`)."""

from __future__ import annotations

import csv
import io
import logging

from app.errors import BadInput

COLUMNS = ("provider", "instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")


def published_catalogue() -> bytes:
    """Return today's instances with GPUs of all providers. Raises BadInput without the package or an answer."""
    try:
        from gpuhunt import Catalog  # noqa: PLC0415 - an extra
    except ImportError:
        raise BadInput(
            "--gpuhunt needs the package gpuhunt: install it beside gpucast (pip install gpuhunt), or give a FILE."
        ) from None
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)  # a provider without an answer is a line, not a traceback
    catalog = Catalog(balance_resources=False, auto_reload=False)
    try:
        catalog.load()
        found = catalog.query(min_gpu_count=1)
    except Exception as error:  # the package has errors of its own, of HTTP, of ZIP files and of CSV
        raise BadInput(f"gpuhunt's catalogue cannot be fetched: {error}. Is there a network?") from None
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows({name: getattr(item, name) for name in COLUMNS} for item in found)
    return text.getvalue().encode()
