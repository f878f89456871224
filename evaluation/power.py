"""Power and energy: what the physical model says of measured watts, with its constants fitted without the GPU or all.

Sources: operators, kernels and whole steps of `gpucast measure` on our H100 and H200, at their measured times, and the
loads of ML.ENERGY (H100, B200) and of InferenceX (MI355X), at predicted times. Only our own rows are fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import minimize

from app.engine.measurement_tables import operator_table
from app.engine.power import Load, PowerModel, is_steady
from app.engine.snapshot import Snapshot
from app.errors import GpucastError
from app.formats import own as own_files
from app.predictors.physics.power_model import SHARES, Activity, Shares, activity, step_share
from app.services.compare.request import device_load
from app.services.dispatch import predict_workload
from app.services.measurements.check_operators import check_in_turn
from app.services.measurements.parse_rows import UploadGpus
from app.tables.arrays import Floats
from app.tables.gpus import GpuSpec, GpuTable
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload
from app.wire.measurement_form import Objects
from app.wire.predict_body import read_request
from app.wire.prediction_form import PredictResponse
from evaluation.data import OWN_FOLDER
from evaluation.first_contact.serving import published_config
from evaluation.render import Report, Table
from evaluation.sources import STUDIES
from evaluation.study import PREDICTOR, Progress, Result, Row, compared, grouped, shipped_snapshot

_OWN = ("*-device", "*-operators", "*-serving-rows", "*-kernels", "host-bound/h200-models", "another-host/h200-models")
# Shares before the data, by hand, and what a squared log distance from them costs: two GPUs with one kind of memory
# leave shares open, most of all that of tensor units, which draw the whole board power in any case.
_PRIOR, _PRIOR_WEIGHT = Shares(idle=0.17, running=0.4, tensor=1.3, lanes=0.4, memory=0.3, slower=1.3), 0.1
_MOST_ROWS, _COVERAGE = 1_000_000, 0.8
# Rows of a source and GPU that count in full: so many of them show what more would.
_FULL = 30


class Part(NamedTuple):
    """A step that a measurement contains `times` times: its load, its seconds, and its operators' activity."""

    times: float
    load: Load
    seconds: float
    done: Activity


class Powered(NamedTuple):
    """A measured power: mean watts of one device over the parts.

    energy_j  measured joules of all devices over the parts; NaN where the seconds are the measured ones
    """

    source: str
    spec: GpuSpec
    parts: Sequence[Part]
    watts: float
    devices: int = 1
    energy_j: float = np.nan

    def share(self, shares: Shares) -> float:
        """Return the modelled share of the board power."""
        joules = [
            p.times * p.seconds * step_share(p.done, p.load.runs, p.seconds, p.load.eager, 1.0, shares)
            for p in self.parts
        ]
        return float(np.sum(joules) / np.sum([p.times * p.seconds for p in self.parts]))


def _part(spec: GpuSpec, times: float, load: Load, seconds: float) -> Part:
    rows = np.arange(len(load.ops))
    return Part(times, load, seconds, activity(load.ops, GpuTable.from_specs([spec]), rows, np.zeros_like(rows)))


def _predicted(snapshot: Snapshot, gpu: str, workload: Row) -> tuple[Load, float]:
    """Return the load of a device, and the predicted seconds."""
    body = {"gpu": gpu, "workload": workload, "predictor": PREDICTOR, "coverage": _COVERAGE}
    request = read_request(msgspec.json.encode(body))
    answer = predict_workload(snapshot, request, max_rows=_MOST_ROWS, advise=False)
    assert isinstance(answer, PredictResponse)
    return device_load(request.workload, None), answer.predictions[0].latency_ms / 1e3  # type: ignore[arg-type]


def _own(snapshot: Snapshot) -> Iterator[Powered]:
    """Yield our own rows with power; those of steps at the time that was measured."""
    catalog = snapshot.engine.catalog
    gpus = UploadGpus(catalog)
    for path in sorted({path for pattern in _OWN for path in OWN_FOLDER.glob(f"{pattern}.parquet")}):
        for part in own_files.read(path):
            if isinstance(part.sent, Objects):
                for row in part.sent.rows:
                    yield from _own_object(snapshot, row)
                continue
            for checked in check_in_turn(gpus, part.sent):
                for block in checked.blocks:
                    table = operator_table(block)
                    kept = ~np.isnan(block.power_w) & is_steady(table, block.latency_s, block.runs)
                    for k in np.flatnonzero(kept).tolist():
                        spec = catalog.resolve(block.contexts[block.context[k]].gpu_id)
                        load = Load(table.take(np.array([k])), np.ones(1))
                        done = _part(spec, 1.0, load, float(block.latency_s[k]))
                        yield Powered("own operators", spec, [done], float(block.power_w[k]))


def _own_object(snapshot: Snapshot, row: Row) -> Iterator[Powered]:
    if not row.get("power_w"):
        return
    spec, workload = snapshot.engine.catalog.resolve(row["gpu"]), dict(row["workload"])
    if workload["kind"] == "kernel":
        source, load = "own kernels", Load(kernel_table([msgspec.convert(workload, KernelWorkload)]), np.ones(1))
    else:
        body = {"gpu": spec.id, "workload": workload | {"software": row["software"]}}
        try:
            request = read_request(msgspec.json.encode(body))
        except GpucastError:  # a block of a network, which has no name of its own
            return
        source, load = "own steps", device_load(request.workload, None)  # type: ignore[arg-type]
    yield Powered(source, spec, [_part(spec, 1.0, load, row["latency_ms"] / 1e3)], float(row["power_w"]))


def _ml_energy(folder: Path, snapshot: Snapshot) -> Iterator[Powered]:
    (study,) = (study for study in STUDIES if study.name == "ml_energy")
    for path in (folder / "whole_models", folder / "more" / "whole_models"):
        for row in pq.read_table(path / "ml_energy.parquet").to_pylist():
            (case,) = (case for case in study.cases([row]) if case.unit == "J")
            devices = int(row["num_gpus"])
            spec = snapshot.engine.catalog.resolve(case.gpu)
            try:
                timed = [(part.times, *_predicted(snapshot, case.gpu, part.workload)) for part in case.parts]
            except GpucastError:
                continue
            if timed:
                kind = "tokens" if case.mode.endswith("token") else case.mode.rpartition(" ")[2]
                parts, watts = [_part(spec, *part) for part in timed], float(row["avg_power_watts"]) / devices
                yield Powered(f"ml_energy {kind}", spec, parts, watts, devices, case.measured)


def _inferencex(folder: Path, snapshot: Snapshot) -> Iterator[Powered]:
    """Yield decode steps of DeepSeek-R1 at the load's concurrency, and the prompts that come between them."""
    config = published_config(folder, "deepseek-ai/DeepSeek-R1")
    seen = set[tuple[Any, ...]]()
    for row in pq.read_table(folder / "inferencex_2026_06/amd.parquet").to_pylist():
        about = tuple(row[name] for name in ("gpu", "precision", "devices", "input_tokens", "concurrency"))
        if not row["avg_power_w"] or row["speculative"] != "none" or row["disaggregated"] or about in seen:
            continue
        seen.add(about)
        tokens, answers, alone = int(row["input_tokens"]), int(row["output_tokens"]), {"tensor": int(row["devices"])}
        step = {"kind": "model", "config": config, "software": row["framework"], "parallelism": alone}
        step |= {"dtype": "nvfp4"} if row["precision"] == "fp4" else {}
        decode = step | {"mode": "decode", "batch": int(row["concurrency"]), "sequence": tokens + answers // 2}
        prompt = step | {"mode": "prefill", "batch": 1, "sequence": tokens}
        spec = snapshot.engine.catalog.resolve(row["gpu"])
        often = (1.0, row["concurrency"] / answers)
        try:
            timed = [
                (times, *_predicted(snapshot, spec.id, each))
                for times, each in zip(often, (decode, prompt), strict=True)
            ]
        except GpucastError:
            continue
        yield Powered("inferencex", spec, [_part(spec, *part) for part in timed], float(row["avg_power_w"]))


def read_powered(folder: Path, snapshot: Snapshot, progress: Progress) -> list[Powered]:
    """Return all measured powers, those of `folder` where they are at hand."""
    rows = list(_own(snapshot))
    progress(f"own: {len(rows)} rows")
    for name, read in (("whole_models", _ml_energy), ("inferencex_2026_06", _inferencex)):
        if (folder / name).is_dir():
            rows += list(read(folder, snapshot))
            progress(f"{name}: {len(rows)} rows in all")
    return rows


def fitted(rows: Sequence[Powered]) -> Shares:
    """Return the shares of least mean absolute log error, in which each source and GPU counts as one, and the prior."""
    cells = grouped(rows, lambda row: (row.source, row.spec.id)).values()
    weights = {id(row): min(len(cell), _FULL) / len(cell) for cell in cells for row in cell}
    weight = np.array([weights[id(row)] for row in rows])
    measured = np.array([row.watts / (row.spec.board_power_w or np.nan) for row in rows])

    def loss(logs: Floats) -> float:
        shares = Shares(*np.exp(logs).tolist())
        error = float(weight @ np.abs(np.log([row.share(shares) for row in rows] / measured)) / weight.sum())
        return error + _PRIOR_WEIGHT * float(((logs - prior) ** 2).sum())

    prior = np.log(_PRIOR)
    fit = minimize(loss, prior, method="Nelder-Mead", options={"maxfev": 300, "xatol": 0.01, "fatol": 1e-5})
    return Shares(*np.exp(fit.x).round(3).tolist())


def _result(row: Powered, shares: Shares) -> Result:
    """Return the errors of a row's power, of its energy if it was measured, and whether the power's band holds it."""
    spec = row.spec
    watts = row.share(shares) * (spec.board_power_w or np.nan)
    (first, *_), model = row.parts, PowerModel()
    band = model.power(spec, first.load, first.seconds, _COVERAGE)
    assert band is not None
    low, high = watts * band.low / band.middle, watts * band.high / band.middle
    seconds = sum(part.times * part.seconds for part in row.parts)
    energy = seconds * row.devices * watts / row.energy_j - 1.0
    about = {"source": row.source, "gpu": spec.id, "measured": row.watts, "predicted": watts, "energy": 100.0 * energy}
    return about | compared(row.watts, watts, low, high)


def evaluate_power(folder: Path, progress: Progress) -> Report:
    """Return the report on power: shipped constants, and constants fitted without each GPU."""
    rows = read_powered(folder, shipped_snapshot(), progress)
    learned = [row for row in rows if row.source.startswith("own")]
    results = [_result(row, SHARES) for row in rows]
    blocks: list[str | Table] = [_table("Shipped constants", results)]
    without = list[Result]()
    for gpu in dict.fromkeys(row.spec.id for row in learned):
        progress(f"without {gpu}")
        shares = fitted([row for row in learned if row.spec.id != gpu])
        without += [_result(row, shares) for row in rows if row.spec.id == gpu]
    blocks += [_table("Constants fitted without the GPU", without)]
    lines = [f"{name:8} {value:.3f}" for name, value in fitted(learned)._asdict().items()]
    return Report(blocks=[*blocks, "", "Fitted to all, shares of the board power:", *lines], body={"cells": results})


def _table(title: str, results: Sequence[Result]) -> Table:
    """Return a row per source and GPU, per source and per GPU: median errors, bias and held, percent."""
    keys: Mapping[str, Callable[[Result], str]] = {
        "": lambda row: f"{row['source']} | {row['gpu']}",
        "every source": lambda row: f"every source | {row['gpu']}",
        "all": lambda row: "all | ",
    }
    rows = []
    for of in keys.values():
        for name, alike in sorted(grouped(results, of).items()):
            errors, energies = (np.array([row[figure] for row in alike]) for figure in ("error", "energy"))
            known = energies[~np.isnan(energies)]
            energy = np.median(np.abs(known)) if len(known) else np.nan
            held = 100.0 * np.mean([row["held"] for row in alike])
            source, _, gpu = name.partition(" | ")
            rows.append((source, gpu, len(alike), np.median(np.abs(errors)), np.median(errors), held, energy))
    columns = {"source": "", "GPU": "", "rows": "d", "power": ".1f", "bias": "+.1f", "held": ".0f", "energy": ".1f"}
    return Table(title, columns, rows)
