"""What a request of POST /compare asks: the workload, the GPUs, and what an hour and a second of each take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite

import msgspec

from app.engine.gpu_rows import GpuRows, Snapshot
from app.engine.power import GIVEN
from app.errors import BadInput, FieldError, NotFound
from app.services.compare.figures import Rate
from app.services.compare.price_rows import MOST_USD
from app.tables.gpus import GpuSpec
from app.tables.names import normalise
from app.wire.compare_form import COMPARE_EXAMPLE, CompareRequest
from app.wire.decoding import decode
from app.wire.kernel_workload import GpuRef
from app.wire.network_form import GraphRequest, ModelRequest
from app.wire.operators.operators_form import OperatorsRequest
from app.wire.predict_body import read_request
from app.wire.prediction_form import PredictRequest

Asked = PredictRequest | OperatorsRequest | ModelRequest | GraphRequest

# Beyond this the unit is wrong.
_MOST_WATTS = 1e6
_DECODER = msgspec.json.Decoder(CompareRequest)


@dataclass(frozen=True, slots=True)
class Entrant:
    """A GPU that is compared: how the request names it, what it is, its price, and its watts where they are given."""

    ref: GpuRef
    spec: GpuSpec
    rate: Rate | None
    watts: float | None


def read_compare(body: bytes) -> CompareRequest:
    """From JSON; Malformed or BadInput that names every wrong field."""
    return decode(_DECODER, body, example=COMPARE_EXAMPLE)


def asked_of(request: CompareRequest) -> Asked:
    """The same as a request of POST /predict; BadInput names every wrong field of the workload."""
    if request.currency != "USD":
        words = f"{request.currency[:20]!r} cannot be used: no exchange rate is known here; send prices in USD"
        raise _refused(("currency",), words)
    inner = {name: getattr(request, name) for name in ("workload", "gpus", "predictor", "coverage")}
    asked = read_request(msgspec.json.encode(inner))
    if not isinstance(asked, Asked):
        raise _refused(("workload", "kind"), "columns are many workloads: send kernel, operators, model or graph")
    return asked


def entrants(snapshot: Snapshot, request: CompareRequest, asked: Asked, today: date) -> list[Entrant]:
    """The GPUs in the order asked, each once; NotFound or BadInput point at the name or figure that is wrong."""
    rows = GpuRows(snapshot)
    targets = rows.targets(asked)
    refs = [rows.id(target) for target in targets] if request.gpus == "all" else request.gpus
    first = {target: k for k, target in reversed([*enumerate(targets)])}
    found = sorted((k, refs[k], rows.spec(target)) for target, k in first.items())
    owner: dict[str, int] = {}
    for k, _, spec in found:
        if owner.setdefault(spec.id, k) != k:
            raise _refused(("gpus", k), f"another GPU compared is called {spec.id!r} too: send another id")
    specs = [spec for _, _, spec in found]
    prices = _by_gpu(snapshot, request.prices, "prices", specs, MOST_USD)
    watts = _by_gpu(snapshot, request.powers_w, "powers_w", specs, _MOST_WATTS)
    return [Entrant(ref, spec, _rate(snapshot, prices, spec, today), watts.get(spec.id)) for _, ref, spec in found]


def _rate(snapshot: Snapshot, prices: Mapping[str, float], spec: GpuSpec, today: date) -> Rate | None:
    """The request's price, else the stored one that counts today."""
    if spec.id in prices:
        return Rate(prices[spec.id], GIVEN)
    stored = snapshot.engine.prices.find(spec.id, today)
    return None if stored is None else Rate.of(stored, today)


def _by_gpu(
    snapshot: Snapshot, figures: Mapping[str, float], field: str, specs: Sequence[GpuSpec], most: float
) -> dict[str, float]:
    """Figures by GPU id, from any of the GPUs' names; those of GPUs that are not compared are checked alike."""
    names = {normalise(name): spec.id for spec in specs for name in (*spec.aliases, spec.name, spec.id)}
    found: dict[str, float] = {}
    for name, figure in figures.items():
        if not (isfinite(figure) and 0 <= figure <= most):
            raise _refused((field, name), f"must be between 0 and {most:,.0f}, got {figure:g}")
        try:
            gpu = names.get(normalise(name)) or snapshot.engine.catalog.resolve(name).id
        except NotFound as error:
            error.errors = (FieldError((field, name), error.detail),)
            raise
        if found.setdefault(gpu, figure) != figure:
            raise _refused((field, name), f"another name of {gpu} has {found[gpu]:g}: send one of them")
    return found


def _refused(loc: tuple[str | int, ...], words: str) -> BadInput:
    return BadInput(f"{'.'.join(map(str, loc))}: {words}.", errors=[FieldError(loc, words)])
