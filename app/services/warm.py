"""Compiled code made ready before the first caller needs it: `python -m app.services.warm` does so ahead of a start."""

from __future__ import annotations

import msgspec

from app.errors import GpucastError
from app.predictors import PREDICTORS
from app.services.engine import Engine
from app.services.gpu_rows import Snapshot
from app.services.predict import predict
from app.services.prediction_form import PredictRequest
from app.services.seed import load_seed_specs
from app.services.workloads import KERNEL_EXAMPLE
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable


def warm(snapshot: Snapshot) -> None:
    """Answer the example request by every predictor that can: compiles once per installation, then loads."""
    for predictor in PREDICTORS:
        gpu = snapshot.engine.gpus.ids[0]
        request = {"gpu": gpu, "workload": KERNEL_EXAMPLE, "predictor": predictor.name, "detail": True}
        try:
            predict(snapshot, msgspec.convert(request, PredictRequest))
        except GpucastError:  # not trained, or a catalogue without the example's GPUs: nothing that stops a start
            continue


def main() -> None:
    """Warm up on the shipped catalogue, without a database."""
    specs = load_seed_specs()
    warm(Snapshot.of(Engine(Catalog(specs), GpuTable.from_specs(specs))))


if __name__ == "__main__":
    main()
