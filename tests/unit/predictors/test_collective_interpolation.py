"""Collective interpolation: sizes between the measured ones, from the other collectives of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.predictors.auto.operators.learning import collective_interpolation as interpolation
from app.predictors.auto.operators.learning.collective_interpolation import with_interpolated_sizes
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from tests.unit.operators import operators

GPUS = GpuTable.from_specs(load_seed_specs())
H100, A100 = GPUS.ids.index("h100-sxm5-80gb"), GPUS.ids.index("a100-sxm4-80gb")
SIZES = range(12, 27)


def took(power: float, devices: float) -> float:
    """A link with a latency, and a step where the protocol changes."""
    return devices * 4e-6 + 2.0**power / 2e11 * (1.6 if power >= 20 else 1.0)


def measured(
    op: str, powers: Iterable[int], *, dtype: str = "fp16", gpu: int = H100, slower: float = 1.0
) -> Measurements:
    every = [(power, devices) for devices in (2.0, 8.0) for power in powers]
    rows = [{"message_bytes": 2.0**power, "devices": devices} for power, devices in every]
    times = [slower * took(power, devices) for power, devices in every]
    return Measurements(operators(op, *rows, dtype=dtype), np.full(len(rows), gpu), np.array(times))


def interpolated(cells: Sequence[Measurements]) -> list[Measurements]:
    """Each cell with the sizes that it lacks."""
    return list(with_interpolated_sizes({("cell", str(k)): cell for k, cell in enumerate(cells)}, GPUS).values())


def test_steps_are_interpolated_from_other_collectives() -> None:
    gappy = measured("all_gather", [power for power in SIZES if power not in {19, 20}])
    found, other = interpolated([gappy, measured("reduce_scatter", SIZES, slower=1.3)])
    assert len(other) == 2 * len(SIZES), "it lacks nothing"
    told = found.take(np.arange(len(gappy), len(found)))
    assert found.take(np.arange(len(gappy))).latency_s.tolist() == gappy.latency_s.tolist()
    assert sorted(np.log2(told.ops.column("message_bytes"))) == [19.0, 19.0, 20.0, 20.0]
    alone = np.log([took(18, 8.0), took(21, 8.0)])
    for row in range(len(told)):
        power, devices = np.log2(told.ops.column("message_bytes")[row]), told.ops.column("devices")[row]
        assert told.latency_s[row] == pytest.approx(took(power, devices), rel=0.08)
        if devices == 8.0:  # at 19 the line between its neighbours is too slow, at 20 it knows no step
            line = np.exp(np.interp(power, [18, 21], alone))
            assert abs(told.latency_s[row] / took(power, devices) - 1.0) < abs(line / took(power, devices) - 1.0)


def test_there_is_no_interpolation_beyond_the_sizes_or_from_other_gpus() -> None:
    short, elsewhere = measured("all_gather", [14, 16, 18]), measured("reduce_scatter", SIZES, gpu=A100)
    assert [len(cell) for cell in interpolated([short, elsewhere])] == [6, 2 * len(SIZES)]
    found, _ = interpolated([short, measured("all_gather", SIZES, dtype="int8")])
    assert sorted(set(np.log2(found.ops.column("message_bytes")))) == [14.0, 15.0, 16.0, 17.0, 18.0]


def test_with_enough_rows_no_interpolation_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [measured("all_gather", [12, 26]), measured("reduce_scatter", SIZES)]
    asked = 2 * (len(SIZES) - 2)
    rows = sum(len(cell) for cell in cells) + asked
    monkeypatch.setattr(interpolation, "MOST", rows)
    assert len(interpolated(cells)[0]) == 4 + asked
    monkeypatch.setattr(interpolation, "MOST", rows - 1)
    assert [len(cell) for cell in interpolated(cells)] == [4, 2 * len(SIZES)]
