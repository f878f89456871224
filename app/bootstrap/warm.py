"""Compile code before the first request needs it. `python -m app.bootstrap.warm` does so before a start."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import msgspec
from msgspec import structs

from app.config import Settings
from app.engine.catalogue import catalog_of, load_seed_specs
from app.engine.engine import Engine
from app.engine.prices import PriceBook, shipped_prices
from app.engine.snapshot import Snapshot
from app.engine.versions import ALL, Stores, shipped_or_untrained
from app.errors import GpucastError
from app.predictors import DEFAULT, OPERATOR_PREDICTORS, PREDICTORS
from app.runtime.code_cache import FOLDER
from app.services.kernels.predict_kernels import predict_kernel
from app.services.models.predict_networks import predict_network
from app.services.operators.predict_operators import predict_operators
from app.services.serving.predict_serving import predict_serving
from app.tables.gpus import GpuTable
from app.wire.json_text import PART_BYTES, check_json_text, decode_in_parts, list_length
from app.wire.kernel_workload import KERNEL_EXAMPLE
from app.wire.measurement_rows import check_lines
from app.wire.network_form import MODEL_EXAMPLE, ModelRequest
from app.wire.operator_forms import OPERATORS_EXAMPLE, OperatorsRequest
from app.wire.prediction_form import PredictRequest
from app.wire.serving_form import SERVING_EXAMPLE, ServingRequest

LOG = logging.getLogger(__name__)
_MOST_ROWS = 1_000  # more than the example network has
_COMPILED = FOLDER / "compiled"  # exists once everything is compiled


def compile_apart() -> None:
    """Compile in a subprocess what is not compiled yet, because a compiler's memory would stay with this process."""
    if not _COMPILED.exists():
        code = subprocess.run([sys.executable, "-m", __name__], check=False).returncode
        if code != 0:
            LOG.warning("the compiling process exited with code %d: this process compiles what it needs", code)


def warm(snapshot: Snapshot) -> None:
    """Answer the example requests with every predictor: compiles code once per installation, loads it after that.

    An untrained predictor does not stop a start, and neither does one that fails: the log has it.
    """
    check_json_text(msgspec.json.encode(KERNEL_EXAMPLE))
    check_lines(b"\n")
    list_length(b"[0]")
    decode_in_parts(b"[" + b"0," * PART_BYTES + b"0]")
    gpu, operators = snapshot.engine.gpus.ids[0], OPERATORS_EXAMPLE["workload"]
    for predictor in PREDICTORS:
        request = {"gpu": gpu, "workload": KERNEL_EXAMPLE, "predictor": predictor.name, "detail": True}
        with _tolerant(predictor.name):
            predict_kernel(snapshot, msgspec.convert(request, PredictRequest))
    for of_operators in OPERATOR_PREDICTORS:
        request = {"gpu": gpu, "workload": operators, "predictor": of_operators.name, "detail": True}
        with _tolerant(of_operators.name):
            rows = len(operators["operators"])
            predict_operators(snapshot, msgspec.convert(request, OperatorsRequest), max_rows=rows)
    example = msgspec.convert(MODEL_EXAMPLE | {"gpu": gpu}, ModelRequest)
    for stages in (1, 2):
        split = structs.replace(example.workload.parallelism, pipeline=stages)
        staged = structs.replace(example, workload=structs.replace(example.workload, parallelism=split))
        with _tolerant(example.predictor):
            predict_network(snapshot, staged, max_rows=_MOST_ROWS)
    # A loop and arrivals are solved by functions of their own, and so are steps of a stack that was measured.
    anywhere = SERVING_EXAMPLE["workload"] | {"dtype": "fp32", "kv_dtype": None}
    loads = ({"concurrency": 2}, {"rate_per_s": 0.5})
    for request in (SERVING_EXAMPLE, *({"gpu": gpu, "workload": anywhere | {"load": load}} for load in loads)):
        with _tolerant(DEFAULT):
            predict_serving(snapshot, msgspec.convert(request, ServingRequest), max_rows=_MOST_ROWS)


@contextmanager
def _tolerant(predictor: str) -> Iterator[None]:
    """Ignore that a predictor is not trained; log any other failure to answer."""
    try:
        yield
    except GpucastError:
        pass
    except Exception:
        LOG.exception("%s failed to answer an example", predictor)


def shipped_snapshot(stores: Stores | None = None, *, only: Collection[str] = ALL) -> Snapshot:
    """Return a snapshot of the shipped catalogue, prices and artefacts with the predictors in `only`: no database.

    `stores` has the artefacts; None: those of this installation.
    """
    specs = load_seed_specs()
    gpus = GpuTable.from_specs(specs)
    served = shipped_or_untrained(stores or Stores.of(Settings.from_env()), gpus, None, only=only).served
    return Snapshot.of(Engine(catalog_of(specs), gpus, served, prices=PriceBook.of(shipped_prices())))


def main() -> None:
    """Warm up with the shipped catalogue and artefacts."""
    warm(shipped_snapshot())
    FOLDER.mkdir(parents=True, exist_ok=True)
    _COMPILED.touch()


if __name__ == "__main__":
    main()
