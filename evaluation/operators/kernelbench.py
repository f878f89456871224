"""KernelBench's programs in eager PyTorch: single operators (level 1), patterns of a few (2) and networks (3), in FP32.

`kernelbench.json.gz` has the ATen calls of each program, as torch.export writes them of a module that trains, without
gradients: KernelBench@b08d959^ (v0) and @423217d (v0.1, levels 1 and 2), MIT. Left out are programs that torch.export
refuses or unrolls (evaluation.operators.kernelbench_programs writes the file), machines that the data's README names
as odd, and of networks the RTX 3090 Ti, which takes 1.7 times as long there as an A10 or A10G, of the same chip with
fewer SMs and less bandwidth. Two folders of the RTX A6000 hold the same times: equal ones count once.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from app.networks.importers.aten import Record, Ref, graph
from evaluation.first_contact.ledger import ask_shipped
from evaluation.first_contact.question import read_rows
from evaluation.first_contact.reading import NoFigure
from evaluation.render import Report, Table
from evaluation.study import shipped_snapshot

FOLDER = "kernelbench_timings"
PROGRAMS = Path(__file__).with_suffix(".json.gz")
_ODD = ("L40S_modal", "A10G_modal")
_ODD_NETWORKS = "RTX_3090_Ti"
_GPUS = {
    "a100_40gb": "a100-sxm4-40gb",
    "a100_80gb": "a100-sxm4-80gb",
    "a6000": "rtx-a6000",
    "h100_sxm": "h100-sxm5-80gb",
    "h100_pcie": "h100-pcie-80gb",
    "l4": "nvidia-l4",
    "l40s": "l40s",
    "rtx_3090_ti": "rtx-3090-ti",
}
Key = tuple[str, str, str]


def evaluate_kernelbench(data: Path, progress: Callable[[str], None]) -> Report:
    """Return errors of each level on each GPU, by the generation of the programs."""
    ask, measured, ratios = ask_shipped(shipped_snapshot()), _measured(data / FOLDER), defaultdict(list)
    for (version, level, problem), form in _graphs():
        times = measured.get((version, level, problem), {})
        workload = {"kind": "graph", "graph": form, "dtype": "fp32", "software": "pytorch"}
        try:
            answer = ask("/predict", {"workload": workload, "gpus": [*times]}) if times else {"predictions": []}
        except NoFigure as refused:
            progress(f"{level} {problem}: {refused}")
            continue
        for row, ms in zip(answer["predictions"], times.values(), strict=True):
            interval = row["interval_ms"]
            error, held = row["latency_ms"] / ms, interval["low"] <= ms <= interval["high"]
            for cell in ((version, level, row["gpu"]), (version, level, "all")):
                ratios[cell].append((error, held))
    rows = [_row(cell, np.array(errors).T) for cell, errors in sorted(ratios.items())]
    columns = {"programs": "", "level": "", "GPU": "", "rows": "d", "error": ".1f", "bias": "+.1f", "held": ".0f"}
    title = "Eager FP32 programs, median error and bias, and rows inside 80 %, all in percent"
    return Report(blocks=[Table(title, columns, rows)], body={"rows": rows})


def _row(cell: Key, figures: np.ndarray[Any, Any]) -> list[Any]:
    ratio, held = figures
    error, bias = 100.0 * np.median(np.abs(ratio - 1.0)), 100.0 * (np.median(ratio) - 1.0)
    return [*cell, len(ratio), float(error), float(bias), float(100.0 * held.mean())]


def _measured(folder: Path) -> dict[Key, dict[str, float]]:
    """Return the median of the machines' mean milliseconds by program and GPU."""
    times: dict[Key, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for row in read_rows(folder / "timings.parquet"):
        odd = row["folder"] in _ODD or (row["level"] == "level3" and row["folder"] == _ODD_NETWORKS)
        if row["mode"] == "eager" and not odd and row["gpu"] in _GPUS and row["mean_ms"]:
            key = (row["problem_version"], row["level"], row["problem"])
            times[key][_GPUS[row["gpu"]]].add(row["mean_ms"])
    return {key: {gpu: median(of) for gpu, of in gpus.items()} for key, gpus in times.items()}


def _graphs() -> Iterator[tuple[Key, dict[str, Any]]]:
    programs: Mapping[str, list[list[Any]]] = json.loads(gzip.decompress(PROGRAMS.read_bytes()))
    for name, records in programs.items():
        version, level, problem = name.split("/")
        yield (version, level, problem), graph(name, [_record(*record) for record in records])


def _record(name: str, target: str, args: Any, kwargs: Any, outputs: Any) -> Record:
    return Record(name, target, _with_refs(args), _with_refs(kwargs), outputs)


def _with_refs(argument: Any) -> Any:
    """Return an argument with Refs in place of {"of": name}."""
    if isinstance(argument, list):
        return [_with_refs(item) for item in argument]
    if isinstance(argument, dict):
        return Ref(argument["of"]) if argument.keys() == {"of"} else {k: _with_refs(v) for k, v in argument.items()}
    return argument
