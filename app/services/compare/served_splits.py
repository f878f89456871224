"""Engines that a plan of a served model chooses among: every split in every format on every GPU type.

Only engines with room for keys and values are priced: the others bear no request, whatever their steps take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.engine.gpu_rows import GpuRows
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, TooLarge
from app.runtime.cancellation import check_cancelled
from app.services.compare.request import Candidate
from app.services.compare.served_options import deployments
from app.services.compare.served_search import BUDGETS, Limits, Option, option_of
from app.services.operators.common import require_predictor
from app.services.serving.deployment import Deployment
from app.services.serving.engines import engines_on, have_room
from app.services.serving.predict_serving import runnable
from app.steps.timing import StepQuery
from app.tables.gpus import GpuSpec
from app.wire.prediction_form import Skipped
from app.wire.serving_form import ServingRequest, ServingWorkload

# Splits x pairs of formats x GPU types of a plan, a few milliseconds each.
MOST_ENGINES = 20_000
_NARROWED = ("gpus", "dtypes", "kv_dtypes", "max_devices")


class Unpriced(NamedTuple):
    """An engine on a GPU type, a row of the request's table; `among`: the GPU types that can run it."""

    deployment: Deployment
    target: int
    among: Sequence[GpuSpec]


class Splits:
    """Engines on the candidates' GPU types; `options`: the priced ones."""

    def __init__(
        self, snapshot: Snapshot, asked: ServingRequest, candidates: Sequence[Candidate], limits: Limits
    ) -> None:
        """Raises NotFound or NotTrained for GPUs or predictors that are not there."""
        self._snapshot, self._asked, self._limits = snapshot, asked, limits
        self._rows = GpuRows(snapshot)
        self._of = {self._rows.row(candidate.ref, ("gpus",)): candidate for candidate in candidates}
        require_predictor(snapshot.engine, self._rows, asked.predictor, [*self._of])
        self._largest = dict[str, tuple[int, Option | Unpriced]]()
        self.options = list[Option]()
        self._skipped = dict[str, Skipped]()

    @property
    def skipped(self) -> list[Skipped]:
        """GPU types that can run none."""
        return [one for one in self._skipped.values() if one.gpu not in self._largest]

    def by_gpu(self) -> dict[str, list[Option]]:
        """Return the priced engines on each GPU type that can run an engine, by its id."""
        found: dict[str, list[Option]] = {gpu: [] for gpu in self._largest}
        for option in self.options:
            found[option.candidate.spec.id].append(option)
        return found

    def largest(self, gpu: str) -> Option:
        """Return the first engine of the most devices on a GPU type."""
        _, found = self._largest[gpu]
        if isinstance(found, Option):
            return found
        (option,) = self._priced(found.deployment, [found.target], found.among)
        return option

    def add(self, workloads: Iterable[ServingWorkload], most_devices: int) -> None:
        """Add every split of the workloads over at most so many devices.

        Raises TooLarge if they are too many, BadInput if no split can run.
        """
        every = list[Deployment]()
        formats = [*workloads]
        for workload in formats:
            for deployment in deployments(workload, most_devices):
                check_cancelled()
                every.append(deployment)
                if len(every) * len(self._of) > MOST_ENGINES:
                    raise _too_many()
        for deployment in every:
            check_cancelled()
            self._add(deployment, every=self._asked.gpus == "all" or len(formats) > 1)
        if not self._largest:
            raise BadInput("workload: no split of the model over max_devices devices can run", errors=[])

    def _add(self, deployment: Deployment, *, every: bool) -> None:
        targets, left_out = runnable(self._snapshot, self._rows, deployment, [*self._of], every=every)
        self._skipped |= {one.gpu: one for one in left_out}
        among = [self._of[target].spec for target in targets]
        room = have_room(deployment, among)
        able = [target for target, fits in zip(targets, room, strict=True) if fits]
        priced = dict(zip(able, self._priced(deployment, able, among), strict=True))
        self.options += priced.values()
        for target, spec in zip(targets, among, strict=True):
            devices, (most, _) = deployment.run.parallelism.devices, self._largest.get(spec.id, (0, None))
            if devices > most:
                self._largest[spec.id] = devices, priced.get(target, Unpriced(deployment, target, among))

    def _priced(self, deployment: Deployment, targets: Sequence[int], among: Sequence[GpuSpec]) -> list[Option]:
        if not targets:
            return []
        query = StepQuery(self._snapshot.engine, self._rows.table(), targets, self._asked.predictor)
        specs = [self._of[target].spec for target in targets]
        engines = engines_on(query, deployment, specs, room=max(BUDGETS), among=among)
        return [
            option_of(deployment, engine, self._of[target], self._limits)
            for target, engine in zip(targets, engines, strict=True)
        ]


def _too_many() -> TooLarge:
    why = f"the splits of the model in all pairs of formats on all GPUs are over {MOST_ENGINES:,} engines"
    message = f"{why}: send fewer gpus, dtypes or kv_dtypes, or less max_devices"
    return TooLarge(message, errors=[FieldError((name,), message) for name in _NARROWED])
